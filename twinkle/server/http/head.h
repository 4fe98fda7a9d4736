// Reads a request's head from its connection. Refuses what a proxy in front might read in another
// way. For server.cpp only: it speaks Beast.
#pragma once
#include <boost/asio/awaitable.hpp>
#include <boost/asio/generic/stream_protocol.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <string>

#include "twinkle/server/http/message.h"
#include "twinkle/server/http/receive.h"

namespace twinkle::server {

// Parses nothing of a body that may begin in the buffer. The error of the connection or of
// Beast's parser; bad_obs_fold: a line of the head goes on in the next.
boost::asio::awaitable<boost::system::error_code> read_head(SocketStream& stream,
                                                            boost::beast::flat_buffer& buffer,
                                                            Parser& parser);

// Why the connection cannot go on behind this head, or "": where its body ends, or whom it is for,
// can be read in two ways.
std::string ambiguity_of(const Parser& parser);

// The buffer has the body behind this head: the connection can go on without reading more.
bool has_whole_body(const Parser& parser, const boost::beast::flat_buffer& buffer);

// The same address, which is one of TCP.
boost::asio::ip::tcp::endpoint tcp_of(
    const boost::asio::generic::stream_protocol::endpoint& endpoint);

// The address of its other end, "unix" of a Unix socket; "" where that is gone.
std::string peer_of(const boost::asio::generic::stream_protocol::socket& socket);

Head head_of(const Parser& parser, const std::string& peer);

}  // namespace twinkle::server
