#ifndef ASCEND_ALLOC_H
#define ASCEND_ALLOC_H

#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>

#endif  /* ASCEND_ALLOC_H */
