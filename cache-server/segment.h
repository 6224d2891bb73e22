/*
 * Segment files: data_dir/segments/NNNNNNNN.seg, preallocated, 4 KiB aligned appends after one header page.
 * This module makes, opens and removes the files, writes their headers, and says where the next record goes. It knows
 * bytes and versions, no keys. The store's lock guards every cs_segment_t; file functions may run without it while the
 * segment is in a state that nobody else touches (FILLING).
 *
 * Header page: magic "VCSG", u32 format 1, u32 CRC32C of the page with this field zero, u32 number, u32 version,
 * u32 zero, u64 file bytes, zeros to 4096. The version grows by one each time the file is reused; a catalog row of an
 * older version names bytes that are gone.
 */
#ifndef CS_SEGMENT_H
#define CS_SEGMENT_H

#include <stdbool.h>
#include <stdint.h>

#include "vc/status.h"

#define CS_SEGMENT_HEADER_BYTES 4096u
#define CS_SEGMENT_FORMAT 1u
#define CS_SEGMENT_MIN_BYTES ((uint64_t)4 << 20)
#define CS_SEGMENT_MAX_BYTES ((uint64_t)256 << 20)
#define CS_SEGMENT_MAX_NUMBER 99999999u

/* Lifetime class: what is in one segment dies together, more or less. Survivors were moved by a cleaning. */
typedef enum { CS_CLASS_FULL = 0, CS_CLASS_COMPRESSED, CS_CLASS_SURVIVOR, CS_N_CLASSES } cs_class_t;

typedef enum {
    CS_SEGMENT_FREE = 0, /* header written, no live object, nobody reads it: may be opened for any class */
    CS_SEGMENT_OPEN,     /* takes appends of its class */
    CS_SEGMENT_SEALED,   /* takes no more; may be a victim */
    CS_SEGMENT_FILLING,  /* between states: the thread that set it works on the file */
    CS_SEGMENT_RETIRED   /* emptied, and the catalog knows; free once nobody reads the old places */
} cs_segment_state_t;

typedef struct cs_segment {
    uint32_t number, version;
    uint64_t bytes; /* size of the file */
    int fd;
    uint8_t class_id; /* cs_class_t */
    uint8_t state;    /* cs_segment_state_t */
    bool is_dirty;    /* number and version are not in the catalog yet */
    bool is_bad;      /* a write or sync failed: no more appends before it was recycled */
    bool sync_failed; /* what was written and not committed by then is lost for good; commit thread only */
    uint64_t tail;    /* where the next record goes */
    uint64_t live_bytes;
    uint32_t live_objects;
    uint32_t first_entry;    /* list of the index entries inside, CS_INDEX_NONE when empty */
    uint32_t writers;        /* extents of open uploads */
    uint64_t pins;           /* readers of places inside */
    uint8_t touched;         /* commit thread: part of the batch being made */
    bool is_stuck;           /* holds a record that the disk refuses to read: not cleaned before its objects are gone */
    bool is_leaving;         /* retired for good: the file goes */
    uint32_t rank;           /* position in the store's heap */
    uint64_t ranked_live;    /* live bytes as the heap's sum has them */
    struct cs_segment *next; /* free or retired list */
    struct cs_segment *next_used;
    uint32_t n_uses; /* not stored yet; > 0: on the list of used segments */
} cs_segment_t;

typedef struct cs_segdir cs_segdir_t;

/* clamp(capacity/64, 4 MiB, 256 MiB), never less than one record and the header. A multiple of 4096. */
uint64_t cs_segment_file_bytes(uint64_t capacity_bytes, uint64_t max_record_bytes);

/* Makes data_dir/segments where missing (not when readonly). */
vc_status_t cs_segdir_open(const char *data_dir, bool readonly, cs_segdir_t **dir_p, vc_err_t *err);
void cs_segdir_close(cs_segdir_t *dir);
int cs_segdir_fd(const cs_segdir_t *dir); /* of the directory */
/* A directory opened read-only takes new files from now on. */
void cs_segdir_set_writable(cs_segdir_t *dir);
/* Calls fn for every segment file there is. Names of another form are left alone. */
vc_status_t cs_segdir_list(cs_segdir_t *dir, void (*fn)(void *arg, uint32_t number, uint64_t bytes), void *arg,
                           vc_err_t *err);

/* A new preallocated file with its header, and the directory synced. NOSPACE leaves nothing behind. BUSY: the name is
 * taken. */
vc_status_t cs_segment_create(cs_segdir_t *dir, uint32_t number, uint32_t version, uint64_t bytes,
                              cs_segment_t *segment_p, vc_err_t *err);
/* Opens an existing file; the state is FREE and the version 0 until the caller knows better. */
vc_status_t cs_segment_open(cs_segdir_t *dir, uint32_t number, cs_segment_t *segment_p, vc_err_t *err);
/* A file opened read-only becomes writable under the same descriptor; reads under way are not disturbed. */
vc_status_t cs_segment_reopen(cs_segdir_t *dir, cs_segment_t *segment, vc_err_t *err);
void cs_segment_close(cs_segment_t *segment);
/* Closes and unlinks; the directory is synced. */
vc_status_t cs_segment_remove(cs_segdir_t *dir, cs_segment_t *segment, vc_err_t *err);
/* Empties the file for its next life: writes the header of the given version and resets the tail. Nothing may read it.
 */
vc_status_t cs_segment_recycle(cs_segment_t *segment, uint32_t version, vc_err_t *err);
/* The page as bytes; false when it is not the sound header of this number and size. */
bool cs_segment_parse_header(const uint8_t page[CS_SEGMENT_HEADER_BYTES], uint32_t number, uint64_t bytes,
                             uint32_t *version_p);
/* CORRUPT when the page is not the header of this number; *version_p is written on success. */
vc_status_t cs_segment_read_header(const cs_segment_t *segment, uint32_t *version_p, vc_err_t *err);

/* The next extent of an OPEN segment; false when it does not fit. bytes is a multiple of 4096. Counts a writer. */
bool cs_segment_append(cs_segment_t *segment, uint32_t bytes, uint64_t *offset_p);
/* The extent at offset was never written and is the last one: gives it back, when it is. Drops the writer. */
void cs_segment_unappend(cs_segment_t *segment, uint64_t offset, uint32_t bytes);

#endif
