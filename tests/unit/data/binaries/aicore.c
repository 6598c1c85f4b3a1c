// Stands in for what bisheng makes of two kernels: the names of the sections are the vendor's, the code is the host's.
__attribute__((section(".ascend.meta._Z3addPf"))) const int add_meta = 1;
__attribute__((section(".ascend.meta._Z4normPf"))) const int norm_meta = 1;
void _Z3addPf(void) {}
void _Z4normPf(void) {}
