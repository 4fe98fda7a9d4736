// Sparse tensors of a forward_backward, whose few bytes may tell of many cells.
#include <atomic>
#include <protozero/pbf_writer.hpp>

#include "twinkle/serving/api/service_for_test.h"

namespace twinkle::server {
namespace {

template <class T>
std::string packed(const std::vector<T>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)};
}

// A tensor of float32 (1) or int64 (2), whose one value, that is listed, is the first cell.
std::string one_cell(int type, const std::string& value, const std::vector<int64_t>& shape) {
  std::vector<int64_t> crow(static_cast<size_t>(shape[0] + 1), 1);
  crow[0] = 0;
  std::string out;
  protozero::pbf_writer tensor(out);
  {
    protozero::pbf_writer csr(tensor, 2);
    csr.add_bytes(1, value);
    csr.add_bytes(2, packed(crow));
    csr.add_bytes(3, packed(std::vector<int64_t>{0}));
  }
  tensor.add_enum(3, type);
  tensor.add_packed_int64(4, shape.begin(), shape.end());
  return out;
}

class SparseTest : public ServiceTest {
 protected:
  // As many data of [rows, cols].
  Response send(const std::string& run, int64_t seq_id, std::vector<int64_t> shape,
                int num_data = 1, const std::string& weights = "weights") {
    std::string body;
    protozero::pbf_writer out(body);
    out.add_string(1, run);
    out.add_int32(2, static_cast<int32_t>(seq_id));
    for (int i = 0; i < num_data; ++i) {
      protozero::pbf_writer datum(out, 3);
      {
        protozero::pbf_writer chunk(datum, 1);
        protozero::pbf_writer text(chunk, 1);
        text.add_bytes(1, packed(std::vector<int32_t>(static_cast<size_t>(shape[0]), 3)));
      }
      const auto add = [&](const std::string& name, const std::string& tensor) {
        protozero::pbf_writer input(datum, 2);
        input.add_string(1, name);
        input.add_bytes(2, tensor);
      };
      add("target_tokens", one_cell(2, packed(std::vector<int64_t>{5}), shape));
      add(weights, one_cell(1, packed(std::vector<float>{1}), shape));
    }
    out.add_string(4, "cross_entropy");
    bytes_ = std::ssize(body);
    Request r = request("/api/v1/forward_backward", body, "tml-a");
    r.headers["content-type"] = "application/x-protobuf";
    return answer(r);
  }

  int64_t bytes_ = 0;  // the last body's
};

TEST_F(SparseTest, WhatWouldMakeALongerResultThanThereMayBeIsRefusedBeforeItIsFilled) {
  const std::string id = run();
  const Response refused = send(id, 1, {50, 400'000});
  EXPECT_EQ(
      text(failure(refused), "error"),
      "server: data[0].target_tokens has the shape [50, 400000], with which the result has "
      "80000000 bytes or more: 4 for each target of a token, also where a sparse tensor lists "
      "none; max_forward_backward_bytes is 67108864; send less data, or fewer targets of a "
      "token, in one request");
  EXPECT_LT(bytes_, 2000);
  EXPECT_NE(failure(step(id, 2)).body.find("max_forward_backward_bytes"), std::string::npos)
      << "its number is used up, and its window broken";
  const std::string four = text(failure(send(id, 3, {50, 100'000}, 4)), "error");
  EXPECT_TRUE(four.starts_with("server: data[3].target_")) << "all data together";
  result(send(id, 4, {50, 300}));
  const Response again = send(id, 4, {50, 400'000});
  EXPECT_EQ(again.status, 200) << "one that came twice is not read again: " << again.body;
  EXPECT_EQ(text(failure(send(id, 5, {50, 300}, 1, "advantages")), "error"),
            "server: data[0].advantages has the shape [50, 300], it must be [50]");
}

TEST_F(SparseTest, OneThatWasAcceptedIsDoneByAStartWhoseLimitIsLower) {
  const std::string id = run();
  executor_->on_batch = [] { std::this_thread::sleep_for(std::chrono::milliseconds(50)); };
  const Response ack = send(id, 1, {50, 300});
  service_.results.max_training_bytes = 1000;
  restart();
  result(ack);
  failure(send(id, 2, {50, 300}));
}

// Three of them are made of 6 kB, and take 180 kB.
TEST_F(SparseTest, TheEngineIsGivenAsMuchAsTheyTakeInMemory) {
  options_.queues.max_bytes = 100 << 10;
  restart();
  const std::string id = run();
  std::atomic<bool> goes_on = false;
  executor_->on_batch = [&] {
    while (!goes_on) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  };
  std::vector<Response> acks;
  for (int64_t seq_id = 1; seq_id <= 3; ++seq_id) acks.push_back(send(id, seq_id, {50, 150}));
  EXPECT_LT(3 * bytes_, 10'000);
  EXPECT_EQ(core_->queues().num_waiting(), 2);
  goes_on = true;
  for (const Response& ack : acks) result(ack);
}

}  // namespace
}  // namespace twinkle::server
