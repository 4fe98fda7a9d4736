#include "twinkle/io/peft/card.h"

#include <gtest/gtest.h>

#include "twinkle/io/scratch_dir_for_test.h"

namespace twinkle {
namespace {

const PeftConfig kConfig{.rank = 4,
                         .alpha = 8,
                         .target_modules = std::vector<std::string>{"q_proj", "v_proj"},
                         .base_model = "owner/name"};

TEST(Card, NamesTheBaseTheRankAndHowToLoadIt) {
  const std::string text = peft_card(kConfig);
  for (const char* part :
       {"---\nbase_model: \"owner/name\"\nlibrary_name: peft\n", "- rank: 4, alpha: 8\n",
        "- modules: q_proj, v_proj\n", "twinkle sample \"owner/name\" \"Who are you?\" --adapter ",
        "AutoModelForCausalLM.from_pretrained(\"owner/name\")"})
    EXPECT_NE(text.find(part), text.npos) << part << text;
  EXPECT_EQ(text.find("rounded"), text.npos);
}

TEST(Card, OfAHeadOfLabelsNamesTransformersClassOfSequences) {
  PeftConfig config = kConfig;
  config.num_labels = 3;
  const std::string text = peft_card(config);
  EXPECT_NE(text.find("AutoModelForSequenceClassification.from_pretrained(\"owner/name\", "
                      "num_labels=3)"),
            text.npos)
      << text;
  EXPECT_EQ(text.find("twinkle sample"), text.npos);
}

TEST(Card, OfTheBuiltInModelSaysThatItsWeightsAreNotTheHubs) {
  PeftConfig config = kConfig;
  config.base_model = "smollm2-q4_1";
  EXPECT_NE(peft_card(config).find("was not trained on the weights that the hub has"),
            std::string::npos);
}

TEST(Card, IsKnownUntilSomebodyChangesIt) {
  const ScratchDir dir;
  write_text(dir / kPeftCard, peft_card(kConfig));
  EXPECT_TRUE(is_peft_card(dir / kPeftCard));
  for (const std::string& changed : {"Mine. " + peft_card(kConfig), peft_card(kConfig) + "Mine.",
                                     std::string("# Mine"), std::string()}) {
    write_text(dir / kPeftCard, changed);
    EXPECT_FALSE(is_peft_card(dir / kPeftCard)) << changed;
  }
}

}  // namespace
}  // namespace twinkle
