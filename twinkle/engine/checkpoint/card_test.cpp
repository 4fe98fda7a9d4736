#include "twinkle/engine/checkpoint/card.h"

#include <gtest/gtest.h>

#include "twinkle/engine/checkpoint/persist_for_test.h"
#include "twinkle/io/scratch_dir_for_test.h"

namespace twinkle::engine {
namespace {

const PeftConfig kConfig{.rank = 4,
                         .alpha = 8,
                         .target_modules = std::vector<std::string>{"q_proj", "v_proj"},
                         .base_model = "owner/name"};

TEST(Card, NamesTheBaseTheRankAndHowToLoadIt) {
  const std::string text = card_of(kConfig);
  for (const char* part :
       {"---\nbase_model: \"owner/name\"\nlibrary_name: peft\n", "- rank: 4, alpha: 8\n",
        "- modules: q_proj, v_proj\n", "twinkle sample \"owner/name\" \"Who are you?\" --adapter ",
        "AutoModelForCausalLM.from_pretrained(\"owner/name\")"})
    EXPECT_NE(text.find(part), text.npos) << part << text;
  EXPECT_EQ(text.find("rounded"), text.npos);
}

TEST(Card, OfTheBuiltInModelSaysThatItsWeightsAreNotTheHubs) {
  PeftConfig config = kConfig;
  config.base_model = "smollm2-q4_1";
  EXPECT_NE(card_of(config).find("was not trained on the weights that the hub has"),
            std::string::npos);
}

TEST(Card, IsKnownUntilSomebodyChangesIt) {
  const ScratchDir dir;
  write_text(dir / kCard, card_of(kConfig));
  EXPECT_TRUE(is_card(dir / kCard));
  for (const std::string& changed : {"Mine. " + card_of(kConfig), card_of(kConfig) + "Mine.",
                                     std::string("# Mine"), std::string()}) {
    write_text(dir / kCard, changed);
    EXPECT_FALSE(is_card(dir / kCard)) << changed;
  }
}

TEST(Card, IsReplacedByTheNextSaveAndAUsersReadmeStays) {
  const model::TinyModel model;
  Engine engine({.model = {.path = model.path(), .mixed_precision = "no"}});
  engine.run<Done>(Create{.tenant = "me", .lora_json = kLora});
  const ScratchDir dir;
  const Save save{.tenant = "me", .directory = dir / "adapter"};
  engine.run<SaveResult>(save);
  engine.run<SaveResult>(save);
  const std::filesystem::path file = dir / "adapter" / kCard;
  EXPECT_NE(read_text(file).find("base_model: \"" + model.path()), std::string::npos);
  write_text(file, "# Mine\n");
  expect_error("holds 'README.md', which is not a checkpoint file",
               [&] { engine.run<SaveResult>(save); });
  EXPECT_EQ(read_text(file), "# Mine\n");
}

}  // namespace
}  // namespace twinkle::engine
