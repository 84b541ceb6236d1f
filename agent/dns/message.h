// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "agent/dns/answer_gate.h"

namespace mapgate::dns {

using MessageView = std::span<const std::uint8_t>;
using Message = std::vector<std::uint8_t>;

inline constexpr std::size_t kHeaderSize = 12;
// Resource record types and classes that the proxy knows (RFC 1035, 3596, 9460, 5936).
inline constexpr std::uint16_t kTypeA = 1;
inline constexpr std::uint16_t kTypeAaaa = 28;
inline constexpr std::uint16_t kTypeSvcb = 64;
inline constexpr std::uint16_t kTypeHttps = 65;
inline constexpr std::uint16_t kTypeIxfr = 251;
inline constexpr std::uint16_t kTypeAxfr = 252;

enum class ReplyCode : std::uint8_t {
  kNoError = 0,
  kFormatError = 1,
  kServerFailure = 2,
  kNameError = 3,
  kNotImplemented = 4,
  kRefused = 5,
};

struct Question {
  // Lower case, without the trailing dot ("" is the root). Bytes that are not printable ASCII, and
  // '.' and '\' inside a label, are written \DDD: a dot always ends a label.
  std::string name;
  std::uint16_t type = 0;
  std::uint16_t question_class = 0;
  std::size_t wire_size = 0;  // of the question, right behind the header
};

// A query as a client sent it.
struct Query {
  std::uint8_t opcode = 0;           // 0: a query
  std::optional<Question> question;  // empty unless there is exactly one
  bool edns = false;
  bool dnssec_ok = false;  // the DO bit, RFC 3225
};

// Reads a client's message whole. Empty: it is no DNS message, or it is a response.
[[nodiscard]] std::optional<Query> parse_query(MessageView message);

[[nodiscard]] std::uint16_t message_id(MessageView message);  // of at least kHeaderSize bytes
[[nodiscard]] ReplyCode reply_code(MessageView message);      // likewise
void set_message_id(std::span<std::uint8_t> message, std::uint16_t id);

// Whether `answer` is a response that repeats the question of `query` byte for byte, letter case
// included (draft-vixie-dnsext-dns0x20), with the same operation. Says nothing about ids.
[[nodiscard]] bool answers_query(MessageView answer, MessageView query, const Question& question);

// The addresses that an answer gives for its question: those of A and AAAA records and the address
// hints of HTTPS and SVCB records of class IN in the answer section, whose owner is on the chain of
// CNAMEs that starts at the question. The order of the records does not matter. An address that
// occurs twice is given once, with its longest TTL. A response code other than NOERROR gives none.
// Empty optional: the message is malformed.
[[nodiscard]] std::optional<std::vector<LearnedAddress>> extract_addresses(MessageView answer);

// A reply without records that repeats the query's id, operation, RD and CD, its question if it has
// exactly one, and has an OPT record if the query has (RFC 6891 7).
[[nodiscard]] Message make_reply(MessageView query, const Query& parsed, ReplyCode code);

// NXDOMAIN, with the SOA record that lets the client keep it for kDeniedNameTtl (RFC 2308 5). The
// record is the root's: no closer zone is known to exist.
inline constexpr std::uint32_t kDeniedNameTtl = 5;  // seconds; the policy may change
[[nodiscard]] Message make_name_error(MessageView query, const Query& parsed);

}  // namespace mapgate::dns
