// SPDX-License-Identifier: Apache-2.0
// The path that every message of a client or a resolver takes. The first byte says how much of the
// rest is the query; what follows is the answer.
#include <cstddef>
#include <cstdint>
#include <cstdlib>

#include "agent/dns/message.h"

namespace {

void require(bool condition) {
  if (!condition) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace mapgate::dns;
  if (size == 0) return 0;
  const MessageView rest(data + 1, size - 1);
  const MessageView query = rest.first(std::min<std::size_t>(data[0], rest.size()));
  const MessageView answer = rest.subspan(query.size());

  const auto addresses = extract_addresses(answer);
  if (addresses) {
    for (std::size_t i = 1; i < addresses->size(); ++i)
      require((*addresses)[i - 1].address < (*addresses)[i].address);
  }

  const auto parsed = parse_query(query);
  if (!parsed) return 0;
  Message reply = make_reply(query, *parsed, ReplyCode::kRefused);
  if (parsed->question) {
    require(parsed->question->name.size() <= 4 * 255);
    require(answers_query(reply, query, *parsed->question));
    static_cast<void>(answers_query(answer, query, *parsed->question));
  }
  reply[2] &= 0x7f;  // read back as a query
  const auto again = parse_query(reply);
  require(again.has_value());
  require(again->edns == parsed->edns &&
          again->question.has_value() == parsed->question.has_value());
  if (parsed->question) require(again->question->name == parsed->question->name);
  return 0;
}
