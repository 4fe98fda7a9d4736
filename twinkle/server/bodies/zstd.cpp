#include "twinkle/server/bodies/zstd.h"

#include <zstd.h>

#include <algorithm>
#include <memory>
#include <utility>

namespace twinkle::server {
namespace {

constexpr int kWindowLog = 23;             // 8 MiB: what a frame may make a decoder hold
constexpr size_t kStep = size_t{1} << 20;  // the output grows by so many bytes

using Context = std::unique_ptr<ZSTD_DCtx, decltype(&ZSTD_freeDCtx)>;

// Null: there is no memory.
Context new_context() {
  Context out(ZSTD_createDCtx(), ZSTD_freeDCtx);
  if (out) ZSTD_DCtx_setParameter(out.get(), ZSTD_d_windowLogMax, kWindowLog);
  return out;
}

std::string inflate(std::string& body, size_t max_bytes) {
  const Context context = new_context();
  if (!context) return "there is no memory to decode it";
  std::string decoded;
  decoded.reserve(max_bytes + 1);  // addresses alone: what is not written to takes no memory
  ZSTD_inBuffer in{body.data(), body.size(), 0};
  ZSTD_outBuffer out{nullptr, 0, 0};
  for (size_t left = 1; in.pos < in.size || left > 0;) {
    if (out.pos == out.size) {  // one byte above the limit tells that there is more
      if (decoded.size() > max_bytes) break;
      decoded.resize(std::min(max_bytes + 1, decoded.size() + kStep));
      out = {decoded.data(), decoded.size(), out.pos};
    }
    const size_t read = in.pos, written = out.pos;
    left = ZSTD_decompressStream(context.get(), &out, &in);
    if (ZSTD_isError(left)) return std::string("it is broken: ") + ZSTD_getErrorName(left);
    if (left > 0 && in.pos == read && out.pos == written && out.pos < out.size)
      return "it is cut off";
  }
  if (out.pos > max_bytes)
    return "it is longer than " + std::to_string(max_bytes) + " bytes when it is decoded";
  decoded.resize(out.pos);
  body = std::move(decoded);
  return "";
}

}  // namespace

std::string decode_body(std::string& body, const std::string& encoding, int64_t max_bytes) {
  if (encoding.empty() || encoding == "identity") return "";
  if (encoding != "zstd")
    return "its Content-Encoding is '" + encoding + "', only zstd and identity are taken";
  const std::string wrong = inflate(body, static_cast<size_t>(max_bytes));
  return wrong.empty() ? "" : "its Content-Encoding is zstd, but " + wrong;
}

struct Search::Decoder {
  Context context = new_context();
  std::string out = std::string(ZSTD_DStreamOutSize(), '\0');
};

Search::Search(std::shared_ptr<Finder> finder, const std::string& encoding, int64_t most)
    : finder_(std::move(finder)), left_(most), left_decoded_(most) {
  if (!finder_ || encoding.empty() || encoding == "identity") return;
  if (encoding == "zstd") decoder_ = std::make_unique<Decoder>();
  if (!decoder_ || !decoder_->context) finder_.reset();
}

Search::~Search() = default;

// A decoder keeps its window and some blocks of at most 128 KiB.
int64_t Search::num_bytes() const {
  return decoder_ ? (int64_t{1} << kWindowLog) + (int64_t{1} << 20) : 0;
}

bool Search::read(std::string_view more) {
  if (!finder_) return false;
  more = more.substr(0, static_cast<size_t>(left_));
  left_ -= std::ssize(more);
  bool goes_on = true;
  if (!decoder_) goes_on = take(more);
  ZSTD_inBuffer in{more.data(), more.size(), 0};
  for (bool is_full = false; decoder_ && goes_on && (in.pos < in.size || is_full);) {
    std::string& text = decoder_->out;
    ZSTD_outBuffer out{text.data(), text.size(), 0};
    const size_t read = in.pos, left = ZSTD_decompressStream(decoder_->context.get(), &out, &in);
    if (!ZSTD_isError(left) && in.pos == read && out.pos == 0) break;
    goes_on = !ZSTD_isError(left) && take({text.data(), out.pos});
    is_full = out.pos == out.size;
  }
  if (!goes_on || left_ == 0) finder_.reset();
  return finder_ != nullptr;
}

bool Search::take(std::string_view more) {
  more = more.substr(0, static_cast<size_t>(left_decoded_));
  left_decoded_ -= std::ssize(more);
  return finder_->read(more) && left_decoded_ > 0;
}

int64_t decoded_bytes(std::string_view body, int64_t most) {
  const unsigned long long told = ZSTD_getFrameContentSize(body.data(), body.size());
  const bool is_told = told != ZSTD_CONTENTSIZE_UNKNOWN && told != ZSTD_CONTENTSIZE_ERROR;
  return is_told ? static_cast<int64_t>(std::min<uint64_t>(told, static_cast<uint64_t>(most)))
                 : most;
}

}  // namespace twinkle::server
