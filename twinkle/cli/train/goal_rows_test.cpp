// Rows of --loss kto; those of the other objectives are tested through the commands.
#include "twinkle/cli/train/goal_rows.h"

#include "twinkle/cli/train/commands_for_test.h"
#include "twinkle/data/encode.h"
#include "twinkle/text/template.h"

namespace twinkle::cli {
namespace {

class JudgedRows : public testing::Test {
 protected:
  data::Dataset read(const std::vector<std::string>& rows, bool others = true,
                     const TrainingFiles& files = {}) const {
    std::string text;
    for (std::string row : rows) {
      std::ranges::replace(row, '\n', ' ');
      text += row + "\n";
    }
    write_text(scratch_ / "rows.jsonl", text);
    return judged_rows((scratch_ / "rows.jsonl").string(), files, template_, 64, others);
  }
  // The error of a second row.
  std::string refusal(const std::string& second) const {
    const std::string error = error_of([&] { read({judged("a", "b", "true"), second}); });
    const std::string place = "data: " + (scratch_ / "rows.jsonl").string() + " line 2: ";
    EXPECT_TRUE(error.starts_with(place)) << error;
    return error.substr(std::min(place.size(), error.size()));
  }
  static std::string judged(const std::string& prompt, const std::string& reply,
                            const std::string& label) {
    return R"({"prompt": ")" + prompt + R"(", "completion": ")" + reply + R"(", "label": )" +
           label + "}";
  }
  // "user: a, assistant: b"
  static std::string said(const Json& chat) {
    std::string out;
    for (const Json& message : chat.at("messages").as_array())
      out += (out.empty() ? "" : ", ") + get<std::string>(message, "role") + ": " +
             get<std::string>(message, "content");
    return out;
  }

  const text::TinyModel model_;
  const text::Template template_{model_.directory(), {.max_length = 0}};
  const ScratchDir scratch_;
};

TEST_F(JudgedRows, EveryPromptGetsTheReplyOfTheRowBeforeItThatHasAnother) {
  const data::Dataset rows = read({judged("a", "1", "true"), judged("b", "2", "false"),
                                   judged("b", "3", "1"), judged("a", "4", "\"False\"")});
  ASSERT_EQ(rows.size(), 4);
  const std::vector<std::string> others = {"user: a, assistant: 3", "user: b, assistant: 1",
                                           "user: b, assistant: 1", "user: a, assistant: 3"};
  for (int64_t i = 0; i < 4; ++i) {
    EXPECT_EQ(said(rows.row(i).at(kOtherReply)), others[static_cast<size_t>(i)]);
    EXPECT_EQ(rows.row(i).at(kDesirable), Json(i == 0 || i == 2));
    EXPECT_TRUE(rows.row(i).at(kOtherReply).as_object().contains("input_ids"));
  }
  EXPECT_FALSE(read({judged("a", "1", "true")}, false).row(0).contains(kOtherReply));
}

TEST_F(JudgedRows, OnlyTheRepliesAfterTheUsersLastMessageAreLearnt) {
  const data::Dataset rows =
      read({R"({"messages": [{"role": "user", "content": "a"},
                {"role": "assistant", "content": "bbbb"}, {"role": "user", "content": "c"},
                {"role": "assistant", "content": "d"}], "label": true})",
            R"({"conversations": [{"from": "human", "value": "e"}, {"from": "gpt", "value": "f"}],
                "kto_tag": false})"},
           true);
  const data::Row& first = rows.row(0).at(kReply).as_object();
  std::vector<int32_t> learnt;
  for (const int32_t label : data::integers(first, "labels"))
    if (label >= 0) learnt.push_back(label);
  EXPECT_EQ(learnt.at(0), 'd');
  EXPECT_LE(learnt.size(), 3U) << "the reply, and what ends it";
  EXPECT_EQ(said(rows.row(0).at(kOtherReply)), "user: a, assistant: bbbb, user: c, assistant: f");
  EXPECT_EQ(said(rows.row(1).at(kOtherReply)), "user: e, assistant: d");
}

TEST_F(JudgedRows, OtherRowsAreRefusedByTheirLine) {
  EXPECT_EQ(refusal(R"({"prompt": "a", "completion": "b"})"),
            "the row has no verdict on its reply: --loss kto learns from a column label or "
            "kto_tag, true or false (docs/preferences.md); add it, or leave --loss out");
  EXPECT_EQ(refusal(judged("a", "b", "\"news\"")),
            refusal(R"({"prompt": "a", "completion": "b"})"));
  EXPECT_EQ(refusal(R"({"prompt": "a", "chosen": "b", "rejected": "c", "label": true})"),
            "the row is no chat with a reply; such a row has prompt, completion and label, or "
            "messages and label (docs/preferences.md)");
  EXPECT_EQ(refusal(R"({"prompt": "a", "completion": "b", "label": true, "kto_tag": false})"),
            "fields 'label' and 'kto_tag' say the opposite of each other; leave one out");
  EXPECT_EQ(refusal(R"({"messages": [{"role": "user", "content": "a"}], "label": true})"),
            "the row has no reply after the user's last message; add it, or leave the row out");
  EXPECT_NE(refusal(judged(std::string(60, 'x'), "b", "true")).find(" --max-length is 64"),
            std::string::npos);
  EXPECT_EQ(error_of([&] { read({judged("a", "b", "true"), judged("a", "c", "false")}); }),
            "cli: --loss kto compares with replies to other prompts, and all rows of " +
                (scratch_ / "rows.jsonl").string() +
                " have the same prompt; add rows of another one, or give --baseline zero");
}

TEST_F(JudgedRows, ColumnsMayHaveOtherNames) {
  const data::Dataset rows =
      read({R"({"q": "a", "a": "b", "good": true})", R"({"q": "c", "a": "d", "good": false})"},
           true, {.columns = "q=prompt,a=completion,good=label"});
  EXPECT_EQ(said(rows.row(1).at(kReply)), "user: c, assistant: d");
}

}  // namespace
}  // namespace twinkle::cli
