// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "agent/dns/message.h"

namespace mapgate::test {

// Writes DNS messages byte by byte, right or wrong ones.
class MessageBuilder {
 public:
  enum Section { kAnswers = 6, kAuthorities = 8, kAdditionals = 10 };

  explicit MessageBuilder(std::uint16_t id, std::uint16_t flags = 0x0100) {
    number(id).number(flags);
    for (int i = 0; i < 4; ++i) number(0);
  }
  static MessageBuilder response(std::uint16_t id, std::uint16_t code = 0) {
    return MessageBuilder(id, static_cast<std::uint16_t>(0x8180 | code));
  }
  // A response to `query`: its id and its question, byte for byte.
  static MessageBuilder response_to(dns::MessageView query, std::uint16_t code = 0) {
    MessageBuilder builder = response(dns::message_id(query), code);
    std::size_t end = dns::kHeaderSize;
    while (query[end] != 0) end += 1U + query[end];
    end += 5;
    builder.raw(query.subspan(dns::kHeaderSize, end - dns::kHeaderSize));
    builder.increment(4);
    return builder;
  }

  MessageBuilder& question(std::string_view text, std::uint16_t type, std::uint16_t cls = 1) {
    increment(4);
    return name(text).number(type).number(cls);
  }
  MessageBuilder& record(std::string_view owner, std::uint16_t type, std::uint32_t ttl,
                         std::span<const std::uint8_t> data, Section section = kAnswers) {
    increment(section);
    name(owner).number(type).number(1).number(static_cast<std::uint16_t>(ttl >> 16));
    number(static_cast<std::uint16_t>(ttl)).number(static_cast<std::uint16_t>(data.size()));
    return raw(data);
  }
  MessageBuilder& a(std::string_view owner, std::uint32_t ttl, std::string_view address) {
    const auto parsed = policy::IpAddress::parse(address).value().bytes();
    return record(owner, dns::kTypeA, ttl, std::span(parsed).last<4>());
  }
  MessageBuilder& aaaa(std::string_view owner, std::uint32_t ttl, std::string_view address) {
    return record(owner, dns::kTypeAaaa, ttl, policy::IpAddress::parse(address).value().bytes());
  }
  MessageBuilder& cname(std::string_view owner, std::uint32_t ttl, std::string_view target) {
    MessageBuilder data(0);
    data.name(target);
    return record(owner, 5, ttl, std::span(data.bytes_).subspan(dns::kHeaderSize));
  }
  MessageBuilder& edns(std::uint16_t size, bool dnssec_ok) {
    increment(kAdditionals);
    bytes_.push_back(0);
    return number(41).number(size).number(0).number(dnssec_ok ? 0x8000 : 0).number(0);
  }

  // Labels end at dots; "" is the root.
  MessageBuilder& name(std::string_view text) {
    while (!text.empty()) {
      const std::string_view label = text.substr(0, text.find('.'));
      bytes_.push_back(static_cast<std::uint8_t>(label.size()));
      for (const char c : label) bytes_.push_back(static_cast<std::uint8_t>(c));
      text.remove_prefix(std::min(text.size(), label.size() + 1));
    }
    bytes_.push_back(0);
    return *this;
  }
  MessageBuilder& number(std::uint16_t value) {
    bytes_.push_back(static_cast<std::uint8_t>(value >> 8));
    bytes_.push_back(static_cast<std::uint8_t>(value));
    return *this;
  }
  MessageBuilder& raw(std::span<const std::uint8_t> data) {
    bytes_.insert(bytes_.end(), data.begin(), data.end());
    return *this;
  }
  // Adds one to the count at this place of the header.
  MessageBuilder& increment(std::size_t offset) {
    if (++bytes_[offset + 1] == 0) ++bytes_[offset];
    return *this;
  }

  [[nodiscard]] const dns::Message& bytes() const { return bytes_; }
  operator dns::MessageView() const { return bytes_; }

 private:
  dns::Message bytes_;
};

}  // namespace mapgate::test
