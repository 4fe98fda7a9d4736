// The state of a TCP socket, without waiting and without Beast. Any thread.
#pragma once

namespace twinkle::server {

// Nothing more will come, although there may be what was sent before.
bool is_gone(int socket);

// The same where bytes of it have not been read, which hide the end from recv().
bool has_hung_up(int socket);

// More can be written now; or nothing ever, as a write then says.
bool takes_more(int socket);

}  // namespace twinkle::server
