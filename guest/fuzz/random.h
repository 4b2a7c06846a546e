/* Where there is no fuzzer with coverage: numbers for inputs, and the loop that feeds them.
 *
 *   NAME SECONDS [SEED] */
#include "../frame.h"

#include <stdlib.h>
#include <time.h>

static u64 state;

static u32 random_number(void)
{
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (u32)(state >> 33);
}

/* Puts an input together in memory of its own, and feeds it. */
static void feed_one(void);

int main(int argc, char **argv)
{
    time_t until = time(NULL) + (argc > 1 ? atoi(argv[1]) : 5);
    state = argc > 2 ? (u64)atoll(argv[2]) : (u64)time(NULL);
    while (time(NULL) < until)
        for (int round = 0; round < 500; round++)
            feed_one();
    return 0;
}
