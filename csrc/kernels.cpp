// All kernels for one instruction set; compiled once for each with -DTG_ISA=<name> and that set's flags.
#include "kernels.h"

#include <type_traits>

#include "accumulate.h"
#include "entropy.h"
#include "error.h"
#include "levels.h"
#include "mean.h"
#include "select.h"
#include "statistics.h"
#include "symbols.h"
#include "ternarize.h"

#define TG_TEXT_(x) #x
#define TG_TEXT(x) TG_TEXT_(x)

namespace terngrad {
extern const Kernels TG_ISA = {
    TG_TEXT(TG_ISA), chunk_statistics, ternarize,   mean_shared,      mean_own,     sum_levels,    mean_levels,
    sum_symbols,     mean_symbols,     chunk_error, chunk_accumulate, select_above, encode_streams, decode_streams,
};
}
