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

std::string beginning_of(std::string_view body, const std::string& encoding, size_t most) {
  if (encoding.empty() || encoding == "identity") return std::string(body.substr(0, most));
  const Context context = encoding == "zstd" ? new_context() : Context(nullptr, ZSTD_freeDCtx);
  std::string out(context ? most : 0, '\0');
  ZSTD_inBuffer in{body.data(), body.size(), 0};
  ZSTD_outBuffer to{out.data(), out.size(), 0};
  for (bool goes_on = context != nullptr; goes_on && to.pos < to.size;) {
    const size_t read = in.pos, written = to.pos;
    const size_t left = ZSTD_decompressStream(context.get(), &to, &in);
    goes_on = !ZSTD_isError(left) && (in.pos > read || to.pos > written);
  }
  out.resize(to.pos);
  return out;
}

int64_t decoded_bytes(std::string_view body, int64_t most) {
  const unsigned long long told = ZSTD_getFrameContentSize(body.data(), body.size());
  const bool is_told = told != ZSTD_CONTENTSIZE_UNKNOWN && told != ZSTD_CONTENTSIZE_ERROR;
  return is_told ? static_cast<int64_t>(std::min<uint64_t>(told, static_cast<uint64_t>(most)))
                 : most;
}

}  // namespace twinkle::server
