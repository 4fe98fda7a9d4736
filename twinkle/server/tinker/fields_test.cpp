#include "twinkle/server/tinker/fields.h"

#include <gtest/gtest.h>

namespace twinkle::server::tinker {
namespace {

TEST(Fields, ASequenceIsADatumAndItsPartsAreTheSdksFields) {
  EXPECT_EQ(by_field("engine: sequence 12: token 9 at position 0 is outside the vocabulary of 9"),
            "server: data[12].model_input: token 9 at position 0 is outside the vocabulary of 9");
  EXPECT_EQ(by_field("engine: sequence 0: label 9 at position 1 is outside the vocabulary of 9 and "
                     "is not -100"),
            "server: data[0].target_tokens: label 9 at position 1 is outside the vocabulary of 9 "
            "and is not -100");
  EXPECT_EQ(by_field("engine: sequence 3 is empty"), "server: data[3].model_input is empty");
  EXPECT_EQ(by_field("engine: sequence 0 has 70 tokens, the model's max_position_embeddings is 64; "
                     "truncate it"),
            "server: data[0].model_input has 70 tokens, the model's max_position_embeddings is 64; "
            "truncate it");
  EXPECT_EQ(by_field("engine: sequence 1 has 3 tokens but 2 values of 'advantages'"),
            "server: data[1] has 3 tokens but 2 values of 'advantages'");
  EXPECT_EQ(by_field("engine: labels of inputs[4] are its own tokens; here labels[t] is the token "
                     "after t: pass labels[1:] + [-100]"),
            "server: data[4].target_tokens are its own tokens; target_tokens[t] is the token after "
            "t: send tokens[:-1] as model_input and tokens[1:] as target_tokens");
  for (const char* other : {"engine: the batch is empty; give at least one sequence",
                            "engine: sequence ", "engine: sequence 1", "engine: sequence x: token"})
    EXPECT_EQ(by_field(other), other);
}

}  // namespace
}  // namespace twinkle::server::tinker
