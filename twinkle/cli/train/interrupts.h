// Ctrl-C (SIGINT), SIGTERM and a closed terminal (SIGHUP, unless it is ignored, as under nohup):
// they end the process with a line and status 1, or let it end in good order. One state for the
// whole process; the last call counts, and the handler stays to the end.
#pragma once

namespace twinkle::cli {

// From now on a signal ends the process at once, with status 1, after a line on standard error:
// "twinkle: " and `text`, which has to live until the next call. Takes no memory.
void end_on_interrupt(const char* text);

// From now on the first signal says on standard error what happens now, and interrupted() is true;
// a second one ends the process at once, with status 1, except SIGHUP, which then changes nothing.
void finish_on_interrupt();

// Since finish_on_interrupt(); any thread.
bool interrupted();

}  // namespace twinkle::cli
