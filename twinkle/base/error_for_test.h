// For tests: the text of the Error that a call throws. Another exception passes through.
#pragma once
#include <gtest/gtest.h>

#include <string>

#include "twinkle/base/error.h"

namespace twinkle {

// "no error" when there is none.
template <class Action>
std::string error_of(Action&& action) {
  try {
    action();
  } catch (const Error& e) {
    return e.what();
  }
  return "no error";
}

// The same, and the Error's code must be kInvalid.
template <class Action>
std::string invalid_of(Action&& action) {
  try {
    action();
  } catch (const Error& e) {
    EXPECT_EQ(e.code, Code::kInvalid) << e.what();
    return e.what();
  }
  return "no error";
}

// Fails the test unless `action` throws an Error whose text holds `text`.
template <class Action>
void expect_error(const std::string& text, Action&& action) {
  const std::string error = error_of(action);
  EXPECT_NE(error.find(text), std::string::npos) << error << "; expected: " << text;
}

}  // namespace twinkle
