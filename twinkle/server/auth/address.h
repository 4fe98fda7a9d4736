// IP addresses as text. Host names are none.
#pragma once
#include <cstdint>
#include <string>

namespace twinkle::server {

// True of an address of version 4 or 6.
bool is_address(const std::string& text);
// The URL that clients of a server at an address and port take: http://127.0.0.1:80,
// http://[::1]:80.
std::string url_of(const std::string& address, uint16_t port);
// True where only this machine reaches an address: 127.0.0.0/8 and ::1. False for what is none.
bool is_loopback(const std::string& address);

}  // namespace twinkle::server
