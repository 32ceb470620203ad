// Entropy-coded streams: a table (model.h), the last states of the coder (states.h), and its words.
//
// Each group of symbols waits for the one before it, so streams are coded abreast, a group of one and then a group of
// the next, as long as they last. Which of them go together changes no bit.
#pragma once

#include "states.h"

namespace {

// Popping waits longest, for two loads in a row; of a single stream it is faster without vectors.
#if defined(__AVX2__)
typedef VU PushStates;
constexpr int kPushAbreast = 2, kPopAbreast = 4;
#else
typedef Scalars PushStates;
constexpr int kPushAbreast = 1, kPopAbreast = 1;
#endif
static_assert(kStreamsAbreast % kPushAbreast == 0 && kStreamsAbreast % kPopAbreast == 0, "calls bring whole groups");

// Moves the streams that are not finished to the front and returns how many they are.
template <class Stream>
int unfinished(Stream** streams, int count) {
  int left = 0;
  for (int i = 0; i < count; ++i)
    if (!streams[i]->finished()) streams[left++] = streams[i];
  return left;
}

// How many symbols are left of the stream that has the fewest.
template <class Stream>
int64_t fewest_left(Stream* const* streams, int count) {
  int64_t fewest = streams[0]->left;
  for (int k = 1; k < count; ++k) fewest = streams[k]->left < fewest ? streams[k]->left : fewest;
  return fewest;
}

// A stream that is being encoded. Words are written downwards; at or below `begin`, it has given up.
struct Pushing {
  Push pushes[256];
  const uint8_t *symbols, *begin;
  int64_t left = 0;  // of the symbols, from the first on: whole groups
  uint8_t* words;
  Scalars states;

  bool finished() const { return left == 0 || words <= begin; }
};

// Pushes groups of unfinished streams until one is finished. Touches at most 15 bytes below `begin`.
template <class States, int kCount>
void push_abreast(Pushing* const* streams) {
  const Push* pushes[kCount];
  const uint8_t *symbols[kCount], *begin[kCount];
  uint8_t* words[kCount];
  States states[kCount];
#pragma GCC unroll 2
  for (int k = 0; k < kCount; ++k) {
    pushes[k] = streams[k]->pushes;
    symbols[k] = streams[k]->symbols + streams[k]->left;
    begin[k] = streams[k]->begin;
    words[k] = streams[k]->words;
    std::memcpy(&states[k], &streams[k]->states, sizeof states[k]);
  }
  const int64_t most = fewest_left(streams, kCount);
  int64_t done = 0;
  for (bool room = true; done < most && room;) {
    done += kStates;
#pragma GCC unroll 2
    for (int k = 0; k < kCount; ++k) {
      push_group(pushes[k], symbols[k] - done, states[k], words[k]);
      room &= words[k] > begin[k];
    }
  }
#pragma GCC unroll 2
  for (int k = 0; k < kCount; ++k) {
    streams[k]->left -= done;
    streams[k]->words = words[k];
    std::memcpy(&streams[k]->states, &states[k], sizeof states[k]);
  }
}

void push_all(Pushing** streams, int count) {
  while ((count = unfinished(streams, count)) > 0) {
    if (count == kPushAbreast)
      push_abreast<PushStates, kPushAbreast>(streams);
    else
      push_abreast<PushStates, 1>(streams);
  }
}

struct Encoder {
  uint8_t table[kLargestTable];
  int table_bytes;
  Pushing pushing;
};

// Makes the table and pushes the symbols behind the last whole group. False: a symbol outside the alphabet.
bool start(const Alphabet& alphabet, const Encoding& stream, Encoder& encoder) {
  uint32_t counts[256];
  count_symbols(stream.symbols, stream.length, counts);
  for (int s = alphabet.size; s < 256; ++s)
    if (counts[s]) return false;
  encoder.table_bytes = write_table(alphabet, counts, encoder.table);
  const int64_t head = encoder.table_bytes + kStateBytes;
  Pushing& pushing = encoder.pushing;
  pushing.symbols = stream.symbols;
  pushing.words = stream.slot + stream.length;
  if (stream.length <= head) {  // has given up already
    pushing.begin = pushing.words;
    return true;
  }
  pushing.begin = stream.slot + head;
  uint16_t frequency[256];
  read_table(alphabet, encoder.table, encoder.table_bytes, frequency);
  make_pushes(frequency, alphabet.size, pushing.pushes);
  for (uint32_t& x : pushing.states.x) x = kLowest;
  pushing.left = stream.length - stream.length % kStates;
  for (int64_t i = stream.length - 1; i >= pushing.left; --i)
    push(pushing.pushes[stream.symbols[i]], pushing.states.x[i - pushing.left], pushing.words);
  return true;
}

// Completes the stream, or stores the symbols as they are, and returns how many bytes that takes.
int64_t finish(const Encoding& stream, const Encoder& encoder) {
  const Pushing& pushing = encoder.pushing;
  if (pushing.words <= pushing.begin) {
    if (stream.length > 0) std::memcpy(stream.slot, stream.symbols, size_t(stream.length));
    return stream.length;
  }
  uint8_t* states = pushing.words - kStateBytes;
  std::memcpy(states, &pushing.states, kStateBytes);
  std::memcpy(states - encoder.table_bytes, encoder.table, size_t(encoder.table_bytes));
  return stream.slot + stream.length - (states - encoder.table_bytes);
}

void encode_abreast(const Alphabet& alphabet, Encoding* streams, int count) {
  Encoder encoders[kPushAbreast];
  Pushing* pushing[kPushAbreast];
  int good = 0;
  for (int i = 0; i < count; ++i) {
    streams[i].num_bytes = start(alphabet, streams[i], encoders[i]) ? 0 : -1;
    if (streams[i].num_bytes == 0) pushing[good++] = &encoders[i].pushing;
  }
  push_all(pushing, good);
  for (int i = 0; i < count; ++i)
    if (streams[i].num_bytes == 0) streams[i].num_bytes = finish(streams[i], encoders[i]);
}

void encode_streams(const Alphabet& alphabet, Encoding* streams, int count) {
  for (int i = 0; i < count; i += kPushAbreast)
    encode_abreast(alphabet, streams + i, count - i < kPushAbreast ? count - i : kPushAbreast);
}

// A group may take eight words, so behind the last sixteen bytes the words are read from a copy with room behind.
struct Words {
  const uint8_t *at, *end;
  int64_t need = kMostWords;
  uint8_t rest[2 * kMostWords] = {};

  // Up to here a group can be popped.
  const uint8_t* last() const { return end - need; }

  // Whether one can be, if need be from the copy. False: more words have been taken than there were.
  bool ready() { return end - at >= need || (need > 0 && copy_rest()); }

  bool copy_rest() {
    const int64_t left = end - at;
    std::memcpy(rest, at, size_t(left));
    at = rest;
    end = rest + left;
    need = 0;
    return true;
  }
};

// A stream that is being decoded.
struct Popping {
  Slots slots;
  Words words;
  Scalars states;
  uint8_t* symbols;
  int64_t left;  // of the symbols: groups, and what is behind the last whole one

  bool finished() const { return left < kStates; }
};

// Pops groups of unfinished streams, whose words are ready, until one is finished or may be short of words.
template <class States, int kCount>
void pop_abreast(Popping* const* streams) {
  const Slots* slots[kCount];
  const uint8_t *words[kCount], *last[kCount];
  uint8_t* symbols[kCount];
  States states[kCount];
#pragma GCC unroll 4
  for (int k = 0; k < kCount; ++k) {
    slots[k] = &streams[k]->slots;
    words[k] = streams[k]->words.at;
    last[k] = streams[k]->words.last();
    symbols[k] = streams[k]->symbols;
    std::memcpy(&states[k], &streams[k]->states, sizeof states[k]);
  }
  const int64_t most = fewest_left(streams, kCount) - kStates;
  int64_t done = 0;
  for (bool ready = true; done <= most && ready; done += kStates) {
#pragma GCC unroll 4
    for (int k = 0; k < kCount; ++k) {
      pop_group(*slots[k], states[k], words[k], symbols[k] + done);
      ready &= words[k] <= last[k];
    }
  }
#pragma GCC unroll 4
  for (int k = 0; k < kCount; ++k) {
    streams[k]->words.at = words[k];
    streams[k]->symbols += done;
    streams[k]->left -= done;
    std::memcpy(&streams[k]->states, &states[k], sizeof states[k]);
  }
}

// False: a stream is short of words.
bool pop_all(Popping** streams, int count) {
  while ((count = unfinished(streams, count)) > 0) {
    for (int k = 0; k < count; ++k)
      if (!streams[k]->words.ready()) return false;
    switch (count) {
#if defined(__AVX2__)
      case 4: pop_abreast<VU, 4>(streams); break;
      case 3: pop_abreast<VU, 3>(streams); break;
      case 2: pop_abreast<VU, 2>(streams); break;
#endif
      default: pop_abreast<Scalars, 1>(streams);
    }
  }
  return true;
}

bool copy_symbols(const Alphabet& alphabet, const Decoding& stream) {
  uint8_t largest = 0;
  for (int64_t i = 0; i < stream.length; ++i) {
    stream.symbols[i] = stream.coded[i];
    largest = stream.coded[i] > largest ? stream.coded[i] : largest;
  }
  return largest < alphabet.size;
}

// Reads table and states. False: no encoder writes them.
bool start(const Alphabet& alphabet, const Decoding& stream, Popping& popping) {
  uint16_t frequency[256];
  const int table_bytes = read_table(alphabet, stream.coded, stream.num_bytes, frequency);
  if (table_bytes < 0) return false;
  const int64_t rest = stream.num_bytes - table_bytes - kStateBytes;
  if (rest < 0 || rest % 2) return false;
  std::memcpy(&popping.states, stream.coded + table_bytes, kStateBytes);
  for (uint32_t x : popping.states.x)
    if (x < kLowest || x >> 31) return false;
  make_slots(frequency, alphabet.size, popping.slots);
  popping.words = Words{stream.coded + table_bytes + kStateBytes, stream.coded + stream.num_bytes};
  popping.symbols = stream.symbols;
  popping.left = stream.length;
  return true;
}

// Pops the symbols behind the last whole group. False: no encoder ends so.
bool finish(Popping& popping) {
  Words& words = popping.words;
  if (!words.ready()) return false;
  for (int j = 0; j < popping.left; ++j) popping.symbols[j] = pop(popping.slots, popping.states.x[j], words.at);
  bool home = words.at == words.end;
  for (uint32_t x : popping.states.x) home &= x == kLowest;
  return home;
}

bool decode_abreast(const Alphabet& alphabet, const Decoding* streams, int count) {
  Popping popping[kPopAbreast];
  Popping* coded[kPopAbreast];
  int num_coded = 0;
  for (int i = 0; i < count; ++i) {
    const Decoding& stream = streams[i];
    if (stream.num_bytes > stream.length) return false;
    if (stream.num_bytes == stream.length) {
      if (!copy_symbols(alphabet, stream)) return false;
    } else {
      if (!start(alphabet, stream, popping[num_coded])) return false;
      coded[num_coded] = &popping[num_coded];
      ++num_coded;
    }
  }
  bool good = pop_all(coded, num_coded);
  for (int i = 0; i < num_coded && good; ++i) good = finish(popping[i]);
  return good;
}

// The inverse of encode_streams. False: no encoder writes these bytes; the symbols are then anything.
bool decode_streams(const Alphabet& alphabet, const Decoding* streams, int count) {
  for (int i = 0; i < count; i += kPopAbreast)
    if (!decode_abreast(alphabet, streams + i, count - i < kPopAbreast ? count - i : kPopAbreast)) return false;
  return true;
}

}  // namespace
