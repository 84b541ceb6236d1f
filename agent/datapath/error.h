// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <expected>
#include <string>

namespace mapgate::datapath {

// Why a step of the datapath failed. One line for a person: "step: text".
struct Error {
  std::string step;      // what was tried, e.g. "load the BPF programs"
  int error_number = 0;  // errno of the call that failed; 0 if no call did
  std::string text;      // what is wrong, and what to do about it if that is known

  [[nodiscard]] std::string message() const;
};

// The error of a system call that failed with this errno.
[[nodiscard]] Error system_error(std::string step, int error_number);

template <typename T>
using Result = std::expected<T, Error>;

}  // namespace mapgate::datapath
