// Recordings that are being replayed.
#pragma once

// Leaves out the calls after the present one, this time, if a recording is being replayed on this thread.
void end_replay();
