/* What a C++ compiler makes of the destructor of a static object, for C: registered before main, run by
 * exit after the handlers that main registers. */
#ifndef STATIC_DESTRUCTOR_H
#define STATIC_DESTRUCTOR_H

extern int __cxa_atexit(void (*function)(void *), void *argument, void *library);
extern void *__dso_handle;

#define STATIC_DESTRUCTOR(function)                                                                     \
    static void __attribute__((constructor)) register_destructor(void) {                                \
        __cxa_atexit(function, NULL, &__dso_handle);                                                    \
    }

#endif
