int library_of_another_release(void) { return 0; }
