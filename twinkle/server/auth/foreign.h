// Requests that a page of another site has a browser send to this machine. They matter where nobody
// is asked for a key: a key is what no such page has.
#pragma once
#include <string>

#include "twinkle/server/http/message.h"

namespace twinkle::server {

// Why a server without keys refuses it, or "": its Host is a name that may be bound to any address
// (localhost and addresses are not), or its Origin is another than the server's own.
std::string foreign(const Head& head);

}  // namespace twinkle::server
