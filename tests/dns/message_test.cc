// SPDX-License-Identifier: Apache-2.0
#include "agent/dns/message.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <ldns/ldns.h>

#include <algorithm>
#include <memory>
#include <random>
#include <string>

#include "tests/dns/message_builder.h"

namespace mapgate::dns {
namespace {

using test::MessageBuilder;
using testing::ElementsAre;
using testing::IsEmpty;

std::vector<std::string> texts(const std::optional<std::vector<LearnedAddress>>& addresses) {
  std::vector<std::string> result;
  if (!addresses) return {"malformed"};
  for (const LearnedAddress& learned : *addresses)
    result.push_back(learned.address.to_string() + " " + std::to_string(learned.ttl.count()));
  std::ranges::sort(result);
  return result;
}

std::vector<std::string> extract(MessageView answer) {
  return texts(extract_addresses(answer));
}

TEST(ParseQuery, ReadsTheQuestionInLowerCase) {
  const auto query =
      parse_query(MessageBuilder(7).question("WwW.ExAmple.COM", kTypeAaaa).edns(4096, true));
  ASSERT_TRUE(query);
  ASSERT_TRUE(query->question);
  EXPECT_EQ(query->question->name, "www.example.com");
  EXPECT_EQ(query->question->type, kTypeAaaa);
  EXPECT_EQ(query->question->question_class, 1);
  EXPECT_EQ(query->question->wire_size, 17U + 4U);
  EXPECT_TRUE(query->edns);
  EXPECT_TRUE(query->dnssec_ok);
}

TEST(ParseQuery, WritesTheRootAsTheEmptyName) {
  const auto query = parse_query(MessageBuilder(7).question("", 2));
  ASSERT_TRUE(query && query->question);
  EXPECT_EQ(query->question->name, "");
  EXPECT_FALSE(query->edns);
}

TEST(ParseQuery, ADotInsideALabelEndsNoLabel) {
  MessageBuilder builder(7);
  builder.increment(4);
  const std::uint8_t name[] = {3, 'a', '.', 'b', 2, ' ', 0xff, 3, 'c', '\\', 'm', 0, 0, 1, 0, 1};
  const auto query = parse_query(builder.raw(name));
  ASSERT_TRUE(query && query->question);
  EXPECT_EQ(query->question->name, "a\\046b.\\032\\255.c\\092m");
}

TEST(ParseQuery, RefusesResponsesAndTornMessages) {
  EXPECT_FALSE(parse_query(MessageBuilder::response(7).question("a.test", kTypeA)));
  const Message whole = MessageBuilder(7).question("a.test", kTypeA).edns(1232, false).bytes();
  for (std::size_t size = 0; size < whole.size(); ++size)
    EXPECT_FALSE(parse_query(MessageView(whole).first(size))) << size;
  EXPECT_TRUE(parse_query(whole));
}

// The name would change with the id that the proxy gives the query.
TEST(ParseQuery, RefusesANameThatPointsIntoTheHeader) {
  MessageBuilder builder(0x0161);
  builder.increment(4);
  const std::uint8_t pointer[] = {1, 'b', 0xc0, 0, 0, 1, 0, 1};
  EXPECT_FALSE(parse_query(builder.raw(pointer)));
}

TEST(ParseQuery, KnowsSeveralQuestions) {
  const auto query =
      parse_query(MessageBuilder(7).question("a.test", kTypeA).question("b.test", kTypeA));
  ASSERT_TRUE(query);
  EXPECT_FALSE(query->question);
}

TEST(AnswersQuery, WantsTheSameSpellingOfTheQuestion) {
  const Message query = MessageBuilder(7).question("wWw.a.test", kTypeA).bytes();
  const Question question = *parse_query(query)->question;
  EXPECT_TRUE(
      answers_query(MessageBuilder::response(9).question("wWw.a.test", kTypeA), query, question));
  EXPECT_FALSE(
      answers_query(MessageBuilder::response(9).question("www.a.test", kTypeA), query, question));
  EXPECT_FALSE(answers_query(MessageBuilder::response(9).question("wWw.a.test", kTypeAaaa), query,
                             question));
  EXPECT_FALSE(answers_query(MessageBuilder::response(9), query, question));
  EXPECT_FALSE(answers_query(MessageBuilder(9).question("wWw.a.test", kTypeA), query, question));
}

TEST(ExtractAddresses, TakesAAndAaaa) {
  EXPECT_THAT(extract(MessageBuilder::response(1)
                          .question("a.test", kTypeA)
                          .a("a.test", 30, "192.0.2.1")
                          .aaaa("A.Test", 20, "2001:db8::1")),
              ElementsAre("192.0.2.1 30", "2001:db8::1 20"));
}

TEST(ExtractAddresses, FollowsAliasesInWhateverOrderWithTheLowestTtl) {
  EXPECT_THAT(extract(MessageBuilder::response(1)
                          .question("a.test", kTypeA)
                          .a("C.test", 300, "192.0.2.1")
                          .cname("B.test", 10, "c.test")
                          .cname("a.test", 100, "b.TEST")
                          .a("b.test", 300, "192.0.2.2")),
              ElementsAre("192.0.2.1 10", "192.0.2.2 100"));
}

TEST(ExtractAddresses, LeavesOutNamesThatTheQuestionDoesNotLeadTo) {
  EXPECT_THAT(extract(MessageBuilder::response(1)
                          .question("a.test", kTypeA)
                          .cname("a.test", 100, "b.test")
                          .a("other.test", 300, "192.0.2.1")
                          .a("sub.b.test", 300, "192.0.2.2")),
              IsEmpty());
}

TEST(ExtractAddresses, EndsAtALoopOfAliases) {
  EXPECT_THAT(extract(MessageBuilder::response(1)
                          .question("a.test", kTypeA)
                          .cname("a.test", 9, "b.test")
                          .cname("b.test", 9, "a.test")
                          .a("b.test", 300, "192.0.2.1")),
              ElementsAre("192.0.2.1 9"));
}

TEST(ExtractAddresses, FollowsSixteenAliasesAndNoMore) {
  MessageBuilder builder = MessageBuilder::response(1).question("n0.test", kTypeA);
  for (int i = 0; i < 40; ++i)
    builder.cname("n" + std::to_string(i) + ".test", 60, "n" + std::to_string(i + 1) + ".test");
  builder.a("n16.test", 60, "192.0.2.16").a("n17.test", 60, "192.0.2.17");
  EXPECT_THAT(extract(builder), ElementsAre("192.0.2.16 60"));
}

TEST(ExtractAddresses, GivesAnAddressOnceWithItsLongestTtl) {
  EXPECT_THAT(extract(MessageBuilder::response(1)
                          .question("a.test", kTypeA)
                          .a("a.test", 30, "192.0.2.1")
                          .aaaa("a.test", 40, "::ffff:192.0.2.1")
                          .a("a.test", 10, "192.0.2.1")),
              ElementsAre("192.0.2.1 40"));
}

TEST(ExtractAddresses, TakesTheHintsOfHttpsAndSvcb) {
  MessageBuilder data(0);
  data.number(1).name("").number(1).number(3).raw(std::vector<std::uint8_t>{2, 'h', '2'});
  data.number(4).number(8).raw(std::vector<std::uint8_t>{192, 0, 2, 1, 192, 0, 2, 2});
  data.number(6).number(16).raw(policy::IpAddress::parse("2001:db8::5")->bytes());
  const auto rdata = MessageView(data).subspan(kHeaderSize);
  for (const std::uint16_t type : {kTypeHttps, kTypeSvcb}) {
    EXPECT_THAT(extract(MessageBuilder::response(1)
                            .question("a.test", type)
                            .cname("a.test", 50, "b.test")
                            .record("b.test", type, 70, rdata)),
                ElementsAre("192.0.2.1 50", "192.0.2.2 50", "2001:db8::5 50"));
  }
}

TEST(ExtractAddresses, AHintThatIsNoListOfAddressesIsMalformed) {
  MessageBuilder data(0);
  data.number(1).name("").number(4).number(3).raw(std::vector<std::uint8_t>{192, 0, 2});
  EXPECT_THAT(
      extract(MessageBuilder::response(1)
                  .question("a.test", kTypeHttps)
                  .record("a.test", kTypeHttps, 70, MessageView(data).subspan(kHeaderSize))),
      ElementsAre("malformed"));
}

TEST(ExtractAddresses, ATtlWithTheHighestBitIsZero) {
  EXPECT_THAT(extract(MessageBuilder::response(1)
                          .question("a.test", kTypeA)
                          .a("a.test", 0x80000001, "192.0.2.1")),
              ElementsAre("192.0.2.1 0"));
}

TEST(ExtractAddresses, AnErrorGivesNone) {
  EXPECT_THAT(
      extract(
          MessageBuilder::response(1, 3).question("a.test", kTypeA).a("a.test", 30, "192.0.2.1")),
      IsEmpty());
}

TEST(ExtractAddresses, OnlyATruncatedAnswerMayEndEarly) {
  const Message whole = MessageBuilder::response(1)
                            .question("a.test", kTypeA)
                            .a("a.test", 30, "192.0.2.1")
                            .a("a.test", 30, "192.0.2.2")
                            .bytes();
  Message torn(whole.begin(), whole.end() - 3);
  EXPECT_THAT(extract(torn), ElementsAre("malformed"));
  torn[2] |= 0x02;
  EXPECT_THAT(extract(torn), ElementsAre("192.0.2.1 30"));
}

// A name may be compressed into a name that is compressed, but not on and on: following it is work.
TEST(ExtractAddresses, ALongChainOfCompressionPointersIsMalformed) {
  for (const std::uint16_t hops : {std::uint16_t{4}, std::uint16_t{100}}) {
    MessageBuilder builder = MessageBuilder::response(1).question("a.test", kTypeA);
    MessageBuilder chain(0);
    const auto base = static_cast<std::uint16_t>(builder.bytes().size() + 11);
    chain.number(0xc00c);
    for (std::uint16_t i = 1; i < hops; ++i)
      chain.number(static_cast<std::uint16_t>(0xc000 | (base + 2 * (i - 1))));
    builder.record("", 65280, 0, MessageView(chain).subspan(kHeaderSize));
    const auto last = static_cast<std::uint16_t>(0xc000 | (base + 2 * (hops - 1)));
    builder.number(last).number(kTypeA).number(1).number(0).number(60).number(4);
    builder.raw(std::vector<std::uint8_t>{192, 0, 2, 1}).increment(MessageBuilder::kAnswers);
    EXPECT_THAT(extract(builder), ElementsAre(hops == 4 ? "192.0.2.1 60" : "malformed"));
  }
}

TEST(MakeReply, EchoesTheQuestionByteForByteAndEdns) {
  const Message query =
      MessageBuilder(0x1234).question("wWw.A.test", kTypeA).edns(4096, true).bytes();
  const Message reply = make_reply(query, *parse_query(query), ReplyCode::kRefused);
  EXPECT_EQ(message_id(reply), 0x1234);
  EXPECT_EQ(reply[2], 0x81);  // a response, recursion desired
  EXPECT_EQ(reply[3], 0x85);  // recursion available, REFUSED
  EXPECT_TRUE(answers_query(reply, query, *parse_query(query)->question));
  Message as_query = reply;
  as_query[2] &= 0x7f;
  const auto parsed = parse_query(as_query);
  ASSERT_TRUE(parsed);
  EXPECT_TRUE(parsed->edns);
  EXPECT_TRUE(parsed->dnssec_ok);
}

TEST(MakeReply, SeveralQuestionsAreNotEchoed) {
  const Message query =
      MessageBuilder(5).question("a.test", kTypeA).question("b.test", kTypeA).bytes();
  const Message reply = make_reply(query, *parse_query(query), ReplyCode::kFormatError);
  EXPECT_EQ(reply.size(), kHeaderSize);
  EXPECT_EQ(reply[3] & 0x0f, 1);
}

TEST(MakeNameError, HasAnSoaThatLetsTheClientKeepItForAWhile) {
  const Message query =
      MessageBuilder(0x1234).question("eViL.test", kTypeA).edns(4096, true).bytes();
  const Message reply = make_name_error(query, *parse_query(query));
  EXPECT_TRUE(answers_query(reply, query, *parse_query(query)->question));
  EXPECT_THAT(extract(reply), IsEmpty());
  ldns_pkt* raw = nullptr;
  ASSERT_EQ(ldns_wire2pkt(&raw, reply.data(), reply.size()), LDNS_STATUS_OK);
  const std::unique_ptr<ldns_pkt, decltype(&ldns_pkt_free)> packet(raw, &ldns_pkt_free);
  EXPECT_EQ(ldns_pkt_id(raw), 0x1234);
  EXPECT_EQ(ldns_pkt_get_rcode(raw), LDNS_RCODE_NXDOMAIN);
  EXPECT_TRUE(ldns_pkt_edns(raw));
  ASSERT_EQ(ldns_pkt_nscount(raw), 1);
  char* text = ldns_rr2str(ldns_rr_list_rr(ldns_pkt_authority(raw), 0));
  EXPECT_STREQ(text, ".\t5\tIN\tSOA\tmapgate.invalid. denied.mapgate.invalid. 1 5 5 5 5\n");
  free(text);  // NOLINT(cppcoreguidelines-no-malloc): ldns's
}

// Whatever comes in: no crash, and what is accepted gives a reply that reads.
TEST(Messages, SurviveMutation) {
  std::mt19937 random(20240501);
  const Message query =
      MessageBuilder(7).question("www.example.com", kTypeA).edns(1232, true).bytes();
  const Message answer = MessageBuilder::response(7)
                             .question("www.example.com", kTypeA)
                             .cname("www.example.com", 5, "b.test")
                             .a("b.test", 5, "192.0.2.1")
                             .bytes();
  std::size_t accepted = 0;
  for (int round = 0; round < 20000; ++round) {
    Message mutated = round % 2 == 0 ? query : answer;
    for (unsigned i = random() % 4; i < 4; ++i)
      mutated[random() % mutated.size()] = static_cast<std::uint8_t>(random());
    mutated.resize(mutated.size() - random() % 2 * (random() % mutated.size()));
    static_cast<void>(extract_addresses(mutated));
    const auto parsed = parse_query(mutated);
    if (!parsed) continue;
    ++accepted;
    Message reply = make_reply(mutated, *parsed, ReplyCode::kServerFailure);
    reply[2] &= 0x7f;
    ASSERT_TRUE(parse_query(reply));
  }
  EXPECT_GT(accepted, 100U);
}

}  // namespace
}  // namespace mapgate::dns
