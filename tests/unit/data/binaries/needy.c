// Needs a recent glibc, a function of the driver, and one that whoever compiled it had and others may not have.
#include <stdlib.h>
unsigned arc4random(void);
int cuInit(unsigned);
int library_of_another_release(void);
int needy(void) { return cuInit(arc4random()) + library_of_another_release(); }
