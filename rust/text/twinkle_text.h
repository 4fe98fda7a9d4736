/* Tokenizers and chat templates (the crates `tokenizers` and `minijinja`) behind a C interface.
 * A function that can fail returns NULL, or the error's text, to be freed with twinkle_text_free.
 * Texts are UTF-8 with a length, not terminated. Handles may be used by many threads at once;
 * nothing here keeps a caller's pointer. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct twinkle_tokenizer twinkle_tokenizer;
typedef struct twinkle_chat twinkle_chat;

typedef struct {
  const char* data;
  size_t size; /* bytes */
} twinkle_view;

/* Token i has the bytes [begins[i], ends[i]) of the text. Free with twinkle_encoding_free. */
typedef struct {
  uint32_t* ids;
  uint32_t* begins;
  uint32_t* ends;
  size_t size; /* tokens */
} twinkle_encoding;

typedef struct {
  size_t num_messages; /* render the first so many; SIZE_MAX: all */
  bool add_generation_prompt;
  bool blocks; /* fill `generated` */
  bool turns;  /* fill `turns`; the text is another where the template does not bear the marks */
} twinkle_request;

/* Pairs [begin, end) of bytes: num_generated of the generation blocks, num_turns of the messages,
 * SIZE_MAX twice where the place of a message is not certain. `tools`, filled with `turns`, are
 * bytes within a list of tools. Free with twinkle_rendering_free. */
typedef struct {
  char* text;
  size_t size;
  size_t* generated;
  size_t num_generated;
  size_t* turns;
  size_t num_turns;
  size_t* tools;
  size_t num_tools;
} twinkle_rendering;

/* Asked now and then, from the thread of the call, whether it is to end with an error; may be
 * NULL. */
typedef struct {
  bool (*asked)(void* argument);
  void* argument;
} twinkle_stop;

void twinkle_text_free(char* text);

/* json: the text of a tokenizer.json; settings: a JSON object, {"added": added tokens that it may
 * lack, "applied": values that must be its own}. */
char* twinkle_tokenizer_open(twinkle_view json, twinkle_view settings, twinkle_tokenizer** out);
void twinkle_tokenizer_close(twinkle_tokenizer* tokenizer);
/* special: add the tokens that the post-processor adds (such as BOS); trimmed: offsets without
 * leading blanks, as the post-processor wants them, instead of those that cover the whole text. */
char* twinkle_tokenizer_encode(const twinkle_tokenizer* tokenizer, twinkle_view text, bool special,
                               bool trimmed, twinkle_encoding* out);
void twinkle_encoding_free(twinkle_encoding encoding);
/* *out is freed with twinkle_rendering_free; only text and size are set. */
char* twinkle_tokenizer_decode(const twinkle_tokenizer* tokenizer, const uint32_t* ids,
                               size_t num_ids, bool skip_special, twinkle_rendering* out);
/* The id, or -1. */
int64_t twinkle_tokenizer_id(const twinkle_tokenizer* tokenizer, twinkle_view token);
/* The token as the vocabulary spells it (not decoded), or NULL; free with twinkle_text_free. */
char* twinkle_tokenizer_token(const twinkle_tokenizer* tokenizer, uint32_t id);
/* Tokens in the vocabulary, added ones included. */
size_t twinkle_tokenizer_size(const twinkle_tokenizer* tokenizer);

char* twinkle_chat_open(twinkle_view source, twinkle_chat** out);
void twinkle_chat_close(twinkle_chat* chat);
bool twinkle_chat_has_generation(const twinkle_chat* chat);
/* context: a JSON object with `messages` and all else that the template reads; strftime_now takes
 * the seconds since 1970 in `__twinkle_now`, if it is there, as the present time. out has
 * num_requests places, which are filled only when NULL is returned. A rendering has limits of
 * steps, memory and depth, which grow with the conversation: src/limits.rs. */
char* twinkle_chat_render(const twinkle_chat* chat, twinkle_view context,
                          const twinkle_request* requests, size_t num_requests, twinkle_stop stop,
                          twinkle_rendering* out);
void twinkle_rendering_free(twinkle_rendering rendering);

#ifdef __cplusplus
}
#endif
