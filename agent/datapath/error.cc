// SPDX-License-Identifier: Apache-2.0
#include "agent/datapath/error.h"

#include <cerrno>
#include <system_error>

namespace mapgate::datapath {

std::string Error::message() const {
  return step + ": " + text;
}

Error system_error(std::string step, int error_number) {
  std::string text = std::generic_category().message(error_number);
  if (error_number == EPERM)
    text +=
        " (needs root, or CAP_BPF, CAP_PERFMON, CAP_NET_ADMIN and CAP_DAC_READ_SEARCH; on kernels "
        "that charge BPF memory to RLIMIT_MEMLOCK also CAP_SYS_RESOURCE)";
  return {std::move(step), error_number, std::move(text)};
}

}  // namespace mapgate::datapath
