// How much a row costs: what the tokenizer and the template engine are asked to do, counted at the
// C interface of the crate, whose two functions the linker wraps in this program (CMakeLists.txt).
#include <gtest/gtest.h>

#include <atomic>
#include <ostream>

#include "rust/text/twinkle_text.h"
#include "twinkle/text/template.h"
#include "twinkle/text/tiny_model_test.h"

namespace {

std::atomic<size_t> renderings, rendered_bytes, tokenisations, tokenised_bytes;

}  // namespace

extern "C" {
char* __real_twinkle_chat_render(const twinkle_chat*, twinkle_view, const twinkle_request*, size_t,
                                 twinkle_stop, twinkle_rendering*);
char* __real_twinkle_tokenizer_encode(const twinkle_tokenizer*, twinkle_view, bool, bool,
                                      twinkle_encoding*);

char* __wrap_twinkle_chat_render(const twinkle_chat* chat, twinkle_view context,
                                 const twinkle_request* requests, size_t num_requests,
                                 twinkle_stop stop, twinkle_rendering* out) {
  char* error = __real_twinkle_chat_render(chat, context, requests, num_requests, stop, out);
  renderings += num_requests;
  for (size_t i = 0; !error && i < num_requests; ++i) rendered_bytes += out[i].size;
  return error;
}

char* __wrap_twinkle_tokenizer_encode(const twinkle_tokenizer* tokenizer, twinkle_view text,
                                      bool special, bool trimmed, twinkle_encoding* out) {
  ++tokenisations;
  tokenised_bytes += text.size;
  return __real_twinkle_tokenizer_encode(tokenizer, text, special, trimmed, out);
}
}

namespace twinkle::text {
namespace {

struct Work {
  size_t renderings = 0, rendered_bytes = 0, tokenisations = 0, tokenised_bytes = 0;
  bool operator==(const Work&) const = default;
};

std::ostream& operator<<(std::ostream& out, const Work& w) {
  return out << w.renderings << " renderings of " << w.rendered_bytes << " bytes, "
             << w.tokenisations << " tokenisations of " << w.tokenised_bytes;
}

Work so_far() { return {renderings, rendered_bytes, tokenisations, tokenised_bytes}; }

// The work of encoding a conversation of so many turns, all alike.
Work work(const Template& encoder, size_t num_turns) {
  JsonArray messages;
  for (size_t i = 0; i < num_turns; ++i) {
    messages.push_back(JsonObject{{"role", "user"}, {"content", "more?"}});
    messages.push_back(JsonObject{{"role", "assistant"}, {"content", "yes."}});
  }
  const Work before = so_far();
  const auto features = encoder.encode(JsonObject{{"messages", messages}});
  const Work after = so_far();
  EXPECT_GT(features.at(0).length(), 10 * static_cast<int64_t>(num_turns));
  return {after.renderings - before.renderings, after.rendered_bytes - before.rendered_bytes,
          after.tokenisations - before.tokenisations,
          after.tokenised_bytes - before.tokenised_bytes};
}

class EncodingWork : public testing::TestWithParam<const char*> {};

TEST_P(EncodingWork, IsInProportionToTheNumberOfTurns) {
  const TinyModel model(GetParam());
  const Template encoder(model.directory(), {.max_length = 0});
  const Work ten = work(encoder, 10), hundred = work(encoder, 100), more = work(encoder, 1000);
  EXPECT_EQ(ten.tokenisations, 1u);
  EXPECT_LE(ten.renderings, 4u);
  EXPECT_LE(ten.rendered_bytes, 3 * ten.tokenised_bytes);
  // A straight line through 10, 100 and 1000 turns, to the byte.
  const auto line = [&](size_t a, size_t b) { return b + 10 * (b - a); };
  EXPECT_EQ(more, (Work{ten.renderings, line(ten.rendered_bytes, hundred.rendered_bytes), 1,
                        line(ten.tokenised_bytes, hundred.tokenised_bytes)}));
}

INSTANTIATE_TEST_SUITE_P(
    Templates, EncodingWork,
    testing::Values(
        kTinyChat,
        // The assistant's text in generation tags.
        "{% for m in messages %}<s>{{ m.role }}\n{% if m.role == 'assistant' %}{% generation %}"
        "{{ m.content }}</s>{% endgeneration %}{% else %}{{ m.content }}</s>{% endif %}{% endfor "
        "%}",
        // Old turns read otherwise than the last one.
        "{% for m in messages %}<s>{{ m.role }}\n"
        "{% if m.role == 'assistant' and loop.last %}{{ '<think>x</think>' }}{% endif %}"
        "{{ m.content }}</s>{% endfor %}{% if add_generation_prompt %}{{ '<s>assistant\n' }}"
        "{% endif %}"));

}  // namespace
}  // namespace twinkle::text
