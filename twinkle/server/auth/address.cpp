#include "twinkle/server/auth/address.h"

#include <boost/asio/ip/address.hpp>

namespace twinkle::server {

bool is_address(const std::string& text) {
  boost::system::error_code error;
  boost::asio::ip::make_address(text, error);
  return !error;
}

std::string url_of(const std::string& address, uint16_t port) {
  boost::system::error_code error;
  const bool is_v6 = boost::asio::ip::make_address(address, error).is_v6() && !error;
  std::string host = is_v6 ? "[" + address + "]" : address;
  if (const size_t zone = host.find('%'); zone != host.npos) host.insert(zone + 1, "25");
  return "http://" + host + ":" + std::to_string(port);
}

bool is_loopback(const std::string& address) {
  boost::system::error_code error;
  const auto it = boost::asio::ip::make_address(address, error);
  return !error && it.is_loopback();
}

}  // namespace twinkle::server
