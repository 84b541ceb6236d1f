// SPDX-License-Identifier: Apache-2.0
#include "agent/dns/message.h"

#include <ldns/ldns.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <string_view>

namespace mapgate::dns {
namespace {

constexpr std::size_t kMaxChainNames = 17;   // the question and 16 CNAMEs: what resolvers follow
constexpr std::uint16_t kOwnUdpSize = 1232;  // what our own replies advertise, DNS flag day 2020

struct FreeRr {
  void operator()(ldns_rr* rr) const { ldns_rr_free(rr); }
};
using Rr = std::unique_ptr<ldns_rr, FreeRr>;

struct FreeRdf {
  void operator()(ldns_rdf* rdf) const { ldns_rdf_deep_free(rdf); }
};
using Rdf = std::unique_ptr<ldns_rdf, FreeRdf>;

std::uint16_t read16(const std::uint8_t* bytes) {
  return static_cast<std::uint16_t>(bytes[0] << 8 | bytes[1]);
}

void write16(std::uint8_t* bytes, std::uint16_t value) {
  bytes[0] = static_cast<std::uint8_t>(value >> 8);
  bytes[1] = static_cast<std::uint8_t>(value);
}

std::uint8_t lower(std::uint8_t byte) {
  return byte >= 'A' && byte <= 'Z' ? static_cast<std::uint8_t>(byte + ('a' - 'A')) : byte;
}

std::span<const std::uint8_t> rdf_bytes(const ldns_rdf* rdf) {
  return {ldns_rdf_data(rdf), ldns_rdf_size(rdf)};
}

// A name in uncompressed wire form, lower case. Length bytes are below 'A', so they stay.
std::string lower_wire_name(const ldns_rdf* name) {
  std::string result;
  result.reserve(ldns_rdf_size(name));
  for (const std::uint8_t byte : rdf_bytes(name)) result.push_back(static_cast<char>(lower(byte)));
  return result;
}

void append_escaped(std::string& text, std::uint8_t byte) {
  const bool plain = byte > 0x20 && byte < 0x7f && byte != '.' && byte != '\\';
  if (plain) {
    text.push_back(static_cast<char>(lower(byte)));
    return;
  }
  text.push_back('\\');
  text.push_back(static_cast<char>('0' + byte / 100));
  text.push_back(static_cast<char>('0' + byte / 10 % 10));
  text.push_back(static_cast<char>('0' + byte % 10));
}

std::string name_text(const ldns_rdf* name) {
  std::string text;
  std::span<const std::uint8_t> rest = rdf_bytes(name);
  text.reserve(rest.size());
  while (!rest.empty() && rest[0] != 0) {
    const std::size_t length = rest[0];
    if (!text.empty()) text.push_back('.');
    for (const std::uint8_t byte : rest.subspan(1, length)) append_escaped(text, byte);
    rest = rest.subspan(1 + length);
  }
  return text;
}

// Where a resource record lies in its message.
struct RecordView {
  std::size_t begin = 0;
  std::uint16_t type = 0;
  std::uint16_t record_class = 0;
  std::uint32_t ttl = 0;
  std::size_t data = 0;
  std::size_t end = 0;
};

// Walks through a message from behind its header. ldns reads names and records, once it is sure
// that this is cheap: it follows up to 65535 compression pointers per name, which makes a crafted
// message of 64 KiB cost a quarter of a second.
class Reader {
 public:
  explicit Reader(MessageView message) : message_(message) {}

  [[nodiscard]] Rdf name() {
    if (!name_end(position_)) return nullptr;
    ldns_rdf* rdf = nullptr;
    const ldns_status status = ldns_wire2dname(&rdf, message_.data(), message_.size(), &position_);
    Rdf result(rdf);
    if (status != LDNS_STATUS_OK || position_ > message_.size()) return nullptr;
    return result;
  }
  [[nodiscard]] std::optional<std::uint16_t> number() {
    if (message_.size() - position_ < 2) return std::nullopt;
    position_ += 2;
    return read16(message_.data() + position_ - 2);
  }
  // Steps over one record.
  [[nodiscard]] std::optional<RecordView> record() {
    constexpr std::size_t kFixedSize = 10;  // type, class, TTL, length of the data
    const std::optional<std::size_t> fixed = name_end(position_);
    if (!fixed || message_.size() - *fixed < kFixedSize) return std::nullopt;
    const std::uint8_t* at = message_.data() + *fixed;
    RecordView record{.begin = position_,
                      .type = read16(at),
                      .record_class = read16(at + 2),
                      .ttl = static_cast<std::uint32_t>(read16(at + 4)) << 16 | read16(at + 6),
                      .data = *fixed + kFixedSize,
                      .end = *fixed + kFixedSize + read16(at + 8)};
    if (record.end > message_.size()) return std::nullopt;
    position_ = record.end;
    return record;
  }
  // Reads a record whose data may hold a name at this place. Null: it is malformed.
  [[nodiscard]] Rr parse(const RecordView& record, std::optional<std::size_t> name_in_data) const {
    if (name_in_data && !name_end(record.data + *name_in_data)) return nullptr;
    ldns_rr* rr = nullptr;
    std::size_t position = record.begin;
    const ldns_status status =
        ldns_wire2rr(&rr, message_.data(), record.end, &position, LDNS_SECTION_ANSWER);
    if (status != LDNS_STATUS_OK) return nullptr;
    Rr result(rr);
    if (position != record.end) return nullptr;
    return result;
  }
  [[nodiscard]] std::size_t position() const { return position_; }

 private:
  // Where the name at `at` ends in the message; nothing if it leaves it, or is no sane name.
  [[nodiscard]] std::optional<std::size_t> name_end(std::size_t at) const {
    constexpr std::size_t kMaxPointers = 32;
    std::optional<std::size_t> end;
    for (std::size_t pointers = 0, labels = 0; labels < LDNS_MAX_DOMAINLEN; ++labels) {
      if (at >= message_.size()) return std::nullopt;
      const std::uint8_t length = message_[at];
      if (length >= 0xc0) {
        if (message_.size() - at < 2 || ++pointers > kMaxPointers) return std::nullopt;
        if (!end) end = at + 2;
        at = read16(message_.data() + at) & 0x3fffU;
      } else if (length == 0) {
        return end ? end : at + 1;
      } else {
        at += 1U + length;
      }
    }
    return std::nullopt;
  }

  MessageView message_;
  std::size_t position_ = kHeaderSize;
};

struct WireQuestion {
  Rdf name;
  std::uint16_t type = 0;
  std::uint16_t question_class = 0;
};

std::optional<WireQuestion> read_question(Reader& reader) {
  Rdf name = reader.name();
  if (!name) return std::nullopt;
  const std::optional<std::uint16_t> type = reader.number();
  const std::optional<std::uint16_t> question_class = reader.number();
  if (!type || !question_class) return std::nullopt;
  return WireQuestion{std::move(name), *type, *question_class};
}

// The records of an answer section, sorted by what extract_addresses() does with them.
struct AnswerRecords {
  std::vector<Rr> aliases;
  std::vector<Rr> addresses;  // A, AAAA, SVCB, HTTPS
};

// False: the record is malformed.
bool sort_in(const Reader& reader, const RecordView& record, AnswerRecords& records) {
  if (record.record_class != LDNS_RR_CLASS_IN) return true;
  std::vector<Rr>* list = &records.addresses;
  std::optional<std::size_t> name_in_data;
  switch (record.type) {
    case LDNS_RR_TYPE_CNAME:
      list = &records.aliases;
      name_in_data = 0;
      break;
    case kTypeA:
    case kTypeAaaa:
      break;
    case kTypeSvcb:
    case kTypeHttps:
      name_in_data = 2;  // behind the priority
      break;
    default:
      return true;
  }
  Rr rr = reader.parse(record, name_in_data);
  if (!rr || ldns_rr_rd_count(rr.get()) == 0) return false;
  list->push_back(std::move(rr));
  return true;
}

std::uint32_t ttl_of(const ldns_rr* rr) {
  const std::uint32_t ttl = ldns_rr_ttl(rr);
  return ttl > 0x7fffffff ? 0 : ttl;  // RFC 2181 8
}

struct ChainName {
  std::string name;
  std::uint32_t ttl;
};

// The names that the question leads to. A loop ends because a name is taken once.
std::vector<ChainName> follow_chain(std::string question, const std::vector<Rr>& aliases) {
  std::vector<ChainName> chain;
  chain.push_back({std::move(question), 0x7fffffff});
  if (aliases.empty()) return chain;
  for (std::size_t i = 0; i < chain.size(); ++i) {
    for (const Rr& alias : aliases) {
      if (chain.size() == kMaxChainNames) return chain;
      if (lower_wire_name(ldns_rr_owner(alias.get())) != chain[i].name) continue;
      std::string target = lower_wire_name(ldns_rr_rdf(alias.get(), 0));
      if (std::ranges::any_of(chain, [&](const ChainName& c) { return c.name == target; }))
        continue;
      chain.push_back({std::move(target), std::min(chain[i].ttl, ttl_of(alias.get()))});
    }
  }
  return chain;
}

// `bytes` is any number of addresses of `width` bytes, one behind the other.
bool append_addresses(std::span<const std::uint8_t> bytes, std::size_t width, std::uint32_t ttl,
                      std::vector<LearnedAddress>& addresses) {
  if (bytes.size() % width != 0) return false;
  for (; !bytes.empty(); bytes = bytes.subspan(width)) {
    policy::IpAddress address;
    if (width == 4) {
      address = policy::IpAddress::from_v4(bytes.first<4>());
    } else {
      policy::IpAddress::Bytes octets;
      std::copy_n(bytes.begin(), octets.size(), octets.begin());
      address = policy::IpAddress(octets);
    }
    addresses.push_back({address, std::chrono::seconds(ttl)});
  }
  return true;
}

// SvcParams (RFC 9460 2.2): key, length, value.
bool append_hints(std::span<const std::uint8_t> parameters, std::uint32_t ttl,
                  std::vector<LearnedAddress>& addresses) {
  while (!parameters.empty()) {
    if (parameters.size() < 4) return false;
    const std::uint16_t key = read16(parameters.data());
    const std::size_t length = read16(parameters.data() + 2);
    if (parameters.size() - 4 < length) return false;
    const std::span<const std::uint8_t> value = parameters.subspan(4, length);
    if (key == LDNS_SVCPARAM_KEY_IPV4HINT && !append_addresses(value, 4, ttl, addresses))
      return false;
    if (key == LDNS_SVCPARAM_KEY_IPV6HINT && !append_addresses(value, 16, ttl, addresses))
      return false;
    parameters = parameters.subspan(4 + length);
  }
  return true;
}

bool append_record(const ldns_rr* rr, std::uint32_t ttl, std::vector<LearnedAddress>& addresses) {
  const ldns_rr_type type = ldns_rr_get_type(rr);
  if (type == LDNS_RR_TYPE_A || type == LDNS_RR_TYPE_AAAA) {
    const ldns_rdf* rdf = ldns_rr_rdf(rr, 0);
    return rdf != nullptr &&
           append_addresses(rdf_bytes(rdf), type == LDNS_RR_TYPE_A ? 4 : 16, ttl, addresses);
  }
  const ldns_rdf* parameters = ldns_rr_rdf(rr, 2);
  return parameters == nullptr || append_hints(rdf_bytes(parameters), ttl, addresses);
}

void remove_duplicates(std::vector<LearnedAddress>& addresses) {
  std::ranges::sort(addresses, [](const LearnedAddress& a, const LearnedAddress& b) {
    return a.address != b.address ? a.address < b.address : a.ttl > b.ttl;
  });
  const auto same = [](const LearnedAddress& a, const LearnedAddress& b) {
    return a.address == b.address;
  };
  addresses.erase(std::unique(addresses.begin(), addresses.end(), same), addresses.end());
}

// The header and the question; make_reply() and make_name_error() say what comes behind.
Message begin_reply(MessageView query, const Query& parsed, ReplyCode code) {
  const std::size_t question_size = parsed.question ? parsed.question->wire_size : 0;
  Message reply(kHeaderSize + question_size);
  std::copy_n(query.begin(), 2, reply.begin());
  const auto opcode = static_cast<std::uint8_t>(parsed.opcode << LDNS_OPCODE_SHIFT);
  reply[2] = static_cast<std::uint8_t>(LDNS_QR_MASK | opcode | (query[2] & LDNS_RD_MASK));
  reply[3] = static_cast<std::uint8_t>(LDNS_RA_MASK | (query[3] & LDNS_CD_MASK) |
                                       static_cast<std::uint8_t>(code));
  if (parsed.question) {
    write16(reply.data() + 4, 1);
    std::copy_n(query.begin() + kHeaderSize, question_size, reply.begin() + kHeaderSize);
  }
  return reply;
}

void append_opt(const Query& query, Message& reply) {
  if (!query.edns) return;
  reply[11] = 1;  // records in the additional section
  const std::uint8_t size_high = kOwnUdpSize >> 8;
  const std::uint8_t size_low = kOwnUdpSize & 0xff;
  const std::uint8_t flags = query.dnssec_ok ? 0x80 : 0;
  const std::uint8_t opt[] = {0, 0, LDNS_RR_TYPE_OPT, size_high, size_low, 0, 0, flags, 0, 0, 0};
  reply.insert(reply.end(), std::begin(opt), std::end(opt));
}

void append16(Message& message, std::uint16_t value) {
  message.push_back(static_cast<std::uint8_t>(value >> 8));
  message.push_back(static_cast<std::uint8_t>(value));
}
void append32(Message& message, std::uint32_t value) {
  append16(message, static_cast<std::uint16_t>(value >> 16));
  append16(message, static_cast<std::uint16_t>(value));
}

// The root's SOA record (RFC 1035 3.3.13). Its names tell people who made it.
void append_denied_soa(Message& reply) {
  constexpr std::string_view kServer("\7mapgate\7invalid\0", 17);
  constexpr std::string_view kMailbox("\6denied\7mapgate\7invalid\0", 24);
  constexpr std::size_t kNumbers = 20;
  reply[9] = 1;        // records in the authority section
  reply.push_back(0);  // owned by the root
  append16(reply, LDNS_RR_TYPE_SOA);
  append16(reply, LDNS_RR_CLASS_IN);
  append32(reply, kDeniedNameTtl);
  append16(reply, static_cast<std::uint16_t>(kServer.size() + kMailbox.size() + kNumbers));
  reply.insert(reply.end(), kServer.begin(), kServer.end());
  reply.insert(reply.end(), kMailbox.begin(), kMailbox.end());
  append32(reply, 1);  // serial; refresh, retry and expire say nothing to a client
  for (int i = 0; i < 3; ++i) append32(reply, kDeniedNameTtl);
  append32(reply, kDeniedNameTtl);  // how long the name does not exist
}

std::uint16_t question_count(MessageView message) {
  return LDNS_QDCOUNT(message.data());
}

}  // namespace

std::optional<Query> parse_query(MessageView message) {
  if (message.size() < kHeaderSize || LDNS_QR_WIRE(message.data()) != 0) return std::nullopt;
  Query query;
  query.opcode = LDNS_OPCODE_WIRE(message.data());
  Reader reader(message);
  const std::uint16_t questions = question_count(message);
  for (std::uint16_t i = 0; i < questions; ++i) {
    const std::optional<WireQuestion> question = read_question(reader);
    if (!question) return std::nullopt;
    if (questions != 1) continue;
    // A compressed name could only point into the header, and change with the id.
    const std::size_t wire_size = reader.position() - kHeaderSize;
    if (wire_size != ldns_rdf_size(question->name.get()) + 4) return std::nullopt;
    query.question = Question{name_text(question->name.get()), question->type,
                              question->question_class, wire_size};
  }
  const unsigned before = LDNS_ANCOUNT(message.data()) + LDNS_NSCOUNT(message.data());
  const unsigned records = before + LDNS_ARCOUNT(message.data());
  for (unsigned i = 0; i < records; ++i) {
    const std::optional<RecordView> record = reader.record();
    if (!record) return std::nullopt;
    if (i < before || record->type != LDNS_RR_TYPE_OPT) continue;
    query.edns = true;
    query.dnssec_ok = (record->ttl & 0x8000) != 0;
  }
  return query;
}

std::uint16_t message_id(MessageView message) {
  return read16(message.data());
}

ReplyCode reply_code(MessageView message) {
  return static_cast<ReplyCode>(LDNS_RCODE_WIRE(message.data()));
}

void set_message_id(std::span<std::uint8_t> message, std::uint16_t id) {
  write16(message.data(), id);
}

bool answers_query(MessageView answer, MessageView query, const Question& question) {
  const std::size_t end = kHeaderSize + question.wire_size;
  return answer.size() >= end && LDNS_QR_WIRE(answer.data()) != 0 &&
         LDNS_OPCODE_WIRE(answer.data()) == LDNS_OPCODE_WIRE(query.data()) &&
         question_count(answer) == 1 &&
         std::ranges::equal(answer.subspan(kHeaderSize, question.wire_size),
                            query.subspan(kHeaderSize, question.wire_size));
}

std::optional<std::vector<LearnedAddress>> extract_addresses(MessageView answer) {
  if (answer.size() < kHeaderSize || question_count(answer) != 1) return std::nullopt;
  Reader reader(answer);
  const std::optional<WireQuestion> question = read_question(reader);
  if (!question) return std::nullopt;
  std::vector<LearnedAddress> addresses;
  if (LDNS_RCODE_WIRE(answer.data()) != LDNS_RCODE_NOERROR) return addresses;

  AnswerRecords records;
  const std::uint16_t count = LDNS_ANCOUNT(answer.data());
  for (std::uint16_t i = 0; i < count; ++i) {
    const std::optional<RecordView> record = reader.record();
    if (!record && LDNS_TC_WIRE(answer.data()) != 0) break;  // cut short, and says so
    if (!record || !sort_in(reader, *record, records)) return std::nullopt;
  }
  const std::vector<ChainName> chain =
      follow_chain(lower_wire_name(question->name.get()), records.aliases);
  for (const Rr& rr : records.addresses) {
    const std::string owner = lower_wire_name(ldns_rr_owner(rr.get()));
    const auto name = std::ranges::find(chain, owner, &ChainName::name);
    if (name == chain.end()) continue;
    if (!append_record(rr.get(), std::min(name->ttl, ttl_of(rr.get())), addresses))
      return std::nullopt;
  }
  remove_duplicates(addresses);
  return addresses;
}

Message make_reply(MessageView query, const Query& parsed, ReplyCode code) {
  Message reply = begin_reply(query, parsed, code);
  append_opt(parsed, reply);
  return reply;
}

Message make_name_error(MessageView query, const Query& parsed) {
  Message reply = begin_reply(query, parsed, ReplyCode::kNameError);
  append_denied_soa(reply);
  append_opt(parsed, reply);
  return reply;
}

}  // namespace mapgate::dns
