// Checks of the list of owner tables.
#pragma once

#include <string>
#include <vector>

#include "common/check.h"

namespace hisparse {

inline void check_owners(const char* op, const std::vector<Tensor>& owners,
                         std::vector<Table<int32_t>>& tables) {
  tables.clear();
  for (size_t g = 0; g < owners.size(); ++g)
    tables.push_back(table<int32_t>(op, item("owners", g), owners[g], kInt32, Access::kWrite));
}

// Nothing that is read, and no other table, stands in the first `count` tables.
inline void check_apart(const char* op, const std::string& argument, const Slab& bytes,
                        const std::vector<Table<int32_t>>& tables, size_t count) {
  for (size_t g = 0; g < count; ++g)
    if (!disjoint(bytes, bytes_of(tables[g])))
      fail(op, argument, "not overlap " + item("owners", g), "shared memory");
}

inline void check_owners_apart(const char* op, const std::vector<Table<int32_t>>& tables) {
  for (size_t g = 1; g < tables.size(); ++g)
    check_apart(op, item("owners", g), bytes_of(tables[g]), tables, g);
}

}  // namespace hisparse
