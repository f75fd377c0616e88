/* error.c: the sentence behind a negative return, the version, and which instructions this CPU has. */
#include <stdarg.h>
#include <stdio.h>

#include "internal.h"

#ifndef PGIO_VERSION
#define PGIO_VERSION "0"
#endif

int pgio_fail(pgio_error *error, int code, const char *format, ...)
{
    if (error) {
        va_list arguments;
        va_start(arguments, format);
        vsnprintf(error->text, sizeof error->text, format, arguments);
        va_end(arguments);
    }
    return -code;
}

const char *pgio_version(void)
{
    return PGIO_VERSION;
}

uint32_t pgio_isa_best(void)
{
#if PGIO_X86
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
        __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512vpopcntdq"))
        return PGIO_ISA_AVX512;
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("popcnt") && __builtin_cpu_supports("bmi"))
        return PGIO_ISA_AVX2;
#endif
    return PGIO_ISA_PORTABLE;
}

int pgio_isa_resolve(uint32_t wanted, uint32_t *isa, pgio_error *error)
{
    uint32_t best = pgio_isa_best();
    if (wanted > PGIO_ISA_AVX512)
        return pgio_fail(error, EINVAL, "isa is %u; it is 0 (auto), 1 (portable), 2 (AVX2) or 3 (AVX-512)", wanted);
    if (wanted > best)
        return pgio_fail(error, ENOTSUP, "this CPU lacks the instructions asked for (isa %u; its best is %u)", wanted,
                         best);
    *isa = wanted == PGIO_ISA_AUTO ? best : wanted;
    return 0;
}
