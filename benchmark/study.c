// Queues in shared memory as a published study has them, for the benchmark alone: a ring of packets under a mutex of
// three kinds, and one packet without a lock. study_work.py loads it. One process sends, and each of the
// others receives all; the memory and the descriptors are inherited.

#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <unistd.h>

enum { OBJECT = 50, PACKET = 8192, QUEUE = 256, BATCH = 32, LOW = 128, MOST = 8 };
// Looks at the one packet until its reader or writer sleeps.
enum { LOOKS = 2000 };
enum kind { ONE_PACKET, MUTEX, ADAPTIVE, ROBUST };
enum status { RIGHT, OVER, WRONG };

// Writes the numbers of objects into a batch.
void fill(char *batch, uint64_t length, uint64_t number) {
    for (uint64_t at = 0; at + OBJECT <= length; at += OBJECT, number++)
        memcpy(batch + at, &number, sizeof number);
}

static enum status check_part(const char *bytes, uint64_t length, uint64_t number, uint64_t within) {
    for (; length && within < sizeof number; length--, bytes++, within++) {
        uint8_t found = *bytes;
        if (found != (uint8_t)(number >> 8 * within))
            return found == 0xff ? OVER : WRONG;
    }
    return RIGHT;
}

// Looks at the number of each object of a stream from a position on. An object of ones is the end.
enum status check(const char *bytes, uint64_t length, uint64_t *position) {
    uint64_t number = *position / OBJECT, within = *position % OBJECT;
    enum status status = RIGHT;
    if (within) {
        uint64_t part = OBJECT - within < length ? OBJECT - within : length;
        if ((status = check_part(bytes, part, number, within)))
            goto found;
        *position += part, bytes += part, length -= part;
        if (*position % OBJECT)
            return RIGHT;
        number++;
    }
    for (; length >= OBJECT; bytes += OBJECT, length -= OBJECT, number++) {
        uint64_t found;
        memcpy(&found, bytes, sizeof found);
        if (found != number) {
            status = found == UINT64_MAX ? OVER : WRONG;
            goto found;
        }
    }
    if (!(status = check_part(bytes, length, number, 0))) {
        *position = number * OBJECT + length;
        return RIGHT;
    }
found:
    *position = number * OBJECT;
    return status;
}

struct receiver {
    // Of the ring: where it reads, how many packets wait for it, whether it sleeps, and whether it keeps the sender asleep.
    uint32_t head, count;
    int waiting, is_full;
    // Of the one packet: how many it has taken, and whether it sleeps.
    _Atomic uint64_t taken;
    _Atomic int asleep;
} __attribute__((aligned(128)));

struct ring {
    pthread_mutex_t mutex;
    int kind, receivers;
    uint32_t tail, full;
    // Where the sender sleeps, and each receiver.
    int pulses[1 + MOST];
    _Atomic uint64_t sent __attribute__((aligned(128)));
    _Atomic int asleep;
    struct receiver each[MOST];
    uint32_t lengths[QUEUE];
    char packets[QUEUE][PACKET] __attribute__((aligned(4096)));
};

static void pulse(int descriptor) {
    uint64_t one = 1;
    while (write(descriptor, &one, sizeof one) < 0 && errno == EINTR);
}

static void wait_for_pulse(int descriptor) {
    uint64_t count;
    while (read(descriptor, &count, sizeof count) < 0 && errno == EINTR);
}

struct ring *ring_open(void) {
    struct ring *ring = mmap(0, sizeof *ring, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (ring == MAP_FAILED)
        return 0;
    for (int i = 0; i <= MOST; i++)
        ring->pulses[i] = eventfd(0, 0);
    return ring;
}

void ring_close(struct ring *ring) {
    for (int i = 0; i <= MOST; i++)
        close(ring->pulses[i]);
    munmap(ring, sizeof *ring);
}

// Makes it empty, while nobody uses it.
void ring_reset(struct ring *ring, int kind, int receivers) {
    pthread_mutexattr_t attributes;
    pthread_mutexattr_init(&attributes);
    pthread_mutexattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
    if (kind == ADAPTIVE)
        pthread_mutexattr_settype(&attributes, PTHREAD_MUTEX_ADAPTIVE_NP);
    if (kind == ROBUST)
        pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST);
    memset(&ring->mutex, 0, sizeof ring->mutex);
    pthread_mutex_init(&ring->mutex, &attributes);
    pthread_mutexattr_destroy(&attributes);
    memset(ring->each, 0, sizeof ring->each);
    ring->kind = kind, ring->receivers = receivers, ring->tail = 0, ring->full = 0;
    atomic_store(&ring->sent, 0);
    atomic_store(&ring->asleep, 0);
    for (int i = 0; i <= MOST; i++) {
        pulse(ring->pulses[i]);
        wait_for_pulse(ring->pulses[i]);
    }
}

static void lock(struct ring *ring) {
    if (pthread_mutex_lock(&ring->mutex) == EOWNERDEAD)
        pthread_mutex_consistent(&ring->mutex);
}

static void unlock(struct ring *ring) { pthread_mutex_unlock(&ring->mutex); }

// The ring.

static void send_packets(struct ring *ring, const char *bytes, uint64_t length) {
    while (length) {
        lock(ring);
        uint32_t room = QUEUE;
        for (int i = 0; i < ring->receivers; i++)
            if (QUEUE - ring->each[i].count < room)
                room = QUEUE - ring->each[i].count;
        if (!room) {
            // High water: it goes on when the last of these is below low water.
            for (int i = 0; i < ring->receivers; i++)
                if (ring->each[i].count > LOW)
                    ring->each[i].is_full = 1, ring->full++;
            unlock(ring);
            wait_for_pulse(ring->pulses[0]);
            continue;
        }
        uint32_t first = ring->tail, made = 0;
        unlock(ring);
        // Nobody looks at packets that are not counted.
        for (; made < room && made < BATCH && length; made++) {
            uint32_t part = length < PACKET ? length : PACKET, place = (first + made) % QUEUE;
            memcpy(ring->packets[place], bytes, part);
            ring->lengths[place] = part, bytes += part, length -= part;
        }
        int woken[MOST], count = 0;
        lock(ring);
        ring->tail += made;
        for (int i = 0; i < ring->receivers; i++) {
            ring->each[i].count += made;
            if (ring->each[i].waiting)
                ring->each[i].waiting = 0, woken[count++] = ring->pulses[1 + i];
        }
        unlock(ring);
        while (count)
            pulse(woken[--count]);
    }
}

static enum status receive_packets(struct ring *ring, int number, uint64_t *position) {
    struct receiver *own = &ring->each[number];
    lock(ring);
    while (!own->count) {
        own->waiting = 1;
        unlock(ring);
        wait_for_pulse(ring->pulses[1 + number]);
        lock(ring);
    }
    uint32_t first = own->head, taken = own->count < BATCH ? own->count : BATCH;
    unlock(ring);
    enum status status = RIGHT;
    for (uint32_t i = 0; i < taken && !status; i++)
        status = check(ring->packets[(first + i) % QUEUE], ring->lengths[(first + i) % QUEUE], position);
    int is_last = 0;
    lock(ring);
    own->head += taken, own->count -= taken;
    if (own->is_full && own->count <= LOW)
        own->is_full = 0, is_last = !--ring->full;
    unlock(ring);
    if (is_last)
        pulse(ring->pulses[0]);
    return status;
}

// The one packet: it is written when all have taken the one before.

static int is_taken(struct ring *ring, int unused) {
    for (int i = 0; i < ring->receivers; i++)
        if (atomic_load(&ring->each[i].taken) != atomic_load(&ring->sent))
            return 0;
    return 1;
}

static int is_there(struct ring *ring, int number) {
    return atomic_load(&ring->each[number].taken) != atomic_load(&ring->sent);
}

static void sleep_until(struct ring *ring, int (*is)(struct ring *, int), int number, _Atomic int *asleep, int own) {
    for (int i = 0; i < LOOKS; i++) {
        if (is(ring, number))
            return;
#ifdef __x86_64__
        __builtin_ia32_pause();
#endif
    }
    for (;;) {
        atomic_store(asleep, 1);
        if (is(ring, number))
            break;
        wait_for_pulse(own);
    }
    atomic_store(asleep, 0);
}

static void wake(_Atomic int *asleep, int descriptor) {
    if (atomic_load(asleep) && atomic_exchange(asleep, 0))
        pulse(descriptor);
}

static void send_one_by_one(struct ring *ring, const char *bytes, uint64_t length) {
    while (length) {
        uint32_t part = length < PACKET ? length : PACKET;
        sleep_until(ring, is_taken, 0, &ring->asleep, ring->pulses[0]);
        memcpy(ring->packets[0], bytes, part);
        ring->lengths[0] = part, bytes += part, length -= part;
        atomic_fetch_add(&ring->sent, 1);
        for (int i = 0; i < ring->receivers; i++)
            wake(&ring->each[i].asleep, ring->pulses[1 + i]);
    }
}

static enum status receive_one(struct ring *ring, int number, uint64_t *position) {
    struct receiver *own = &ring->each[number];
    sleep_until(ring, is_there, number, &own->asleep, ring->pulses[1 + number]);
    enum status status = check(ring->packets[0], ring->lengths[0], position);
    atomic_fetch_add(&own->taken, 1);
    if (is_taken(ring, 0))
        wake(&ring->asleep, ring->pulses[0]);
    return status;
}

// Sends a batch to all.
void ring_send(struct ring *ring, const char *bytes, uint64_t length) {
    (ring->kind == ONE_PACKET ? send_one_by_one : send_packets)(ring, bytes, length);
}

// Waits for packets and looks at them where they lie.
enum status ring_receive(struct ring *ring, int number, uint64_t *position) {
    return (ring->kind == ONE_PACKET ? receive_one : receive_packets)(ring, number, position);
}
