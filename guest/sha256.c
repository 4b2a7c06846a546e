/* SHA-256 (FIPS 180-4), for the content of the few files that a sandbox did not get from its template. */
#include "fingerprint.h"

#include <string.h>

static const u32 rounds[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5, 0xd807aa98, 0x12835b01,
    0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174, 0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc,
    0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da, 0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147,
    0x06ca6351, 0x14292967, 0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070, 0x19a4c116, 0x1e376c08,
    0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3, 0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208,
    0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2,
};

static u32 rotate(u32 value, int by) { return value >> by | value << (32 - by); }

static u32 get_big(const u8 *at) { return (u32)at[0] << 24 | (u32)at[1] << 16 | (u32)at[2] << 8 | at[3]; }

static void take_block(struct sha256 *s, const u8 *block)
{
    u32 w[64], *v = s->state;
    u32 a = v[0], b = v[1], c = v[2], d = v[3], e = v[4], f = v[5], g = v[6], h = v[7];
    for (int i = 0; i < 16; i++)
        w[i] = get_big(block + 4 * i);
    for (int i = 16; i < 64; i++) {
        u32 low = rotate(w[i - 15], 7) ^ rotate(w[i - 15], 18) ^ w[i - 15] >> 3;
        u32 high = rotate(w[i - 2], 17) ^ rotate(w[i - 2], 19) ^ w[i - 2] >> 10;
        w[i] = w[i - 16] + low + w[i - 7] + high;
    }
    for (int i = 0; i < 64; i++) {
        u32 one = h + (rotate(e, 6) ^ rotate(e, 11) ^ rotate(e, 25)) + (g ^ (e & (f ^ g))) + rounds[i] + w[i];
        u32 two = (rotate(a, 2) ^ rotate(a, 13) ^ rotate(a, 22)) + ((a & b) | (c & (a | b)));
        h = g, g = f, f = e, e = d + one;
        d = c, c = b, b = a, a = one + two;
    }
    v[0] += a, v[1] += b, v[2] += c, v[3] += d;
    v[4] += e, v[5] += f, v[6] += g, v[7] += h;
}

void sha256_begin(struct sha256 *s)
{
    *s = (struct sha256){.state = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19}};
}

void sha256_add(struct sha256 *s, const u8 *data, size_t length)
{
    size_t held = s->length % 64;
    s->length += length;
    if (held) {
        size_t some = length < 64 - held ? length : 64 - held;
        memcpy(s->block + held, data, some);
        data += some;
        length -= some;
        if (held + some < 64)
            return;
        take_block(s, s->block);
    }
    for (; length >= 64; data += 64, length -= 64)
        take_block(s, data);
    memcpy(s->block, data, length);
}

void sha256_end(struct sha256 *s, u8 digest[32])
{
    u64 bits = s->length * 8;
    u8 tail[72] = {0x80};
    size_t padding = (s->length % 64 < 56 ? 56 : 120) - s->length % 64;
    for (int i = 0; i < 8; i++)
        tail[padding + (size_t)i] = (u8)(bits >> (56 - 8 * i));
    sha256_add(s, tail, padding + 8);
    for (int i = 0; i < 32; i++)
        digest[i] = (u8)(s->state[i / 4] >> (24 - i % 4 * 8));
}
