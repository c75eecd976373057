/* What the compiled batches of Sokoban and FrozenLake have in common: arrays that Python gives, and texts of grids.
 *
 * The arrays are those of envs/batch.py, which decides their sizes; they are checked here all the same, since a wrong one
 * would be written past its end.
 */
#ifndef ENVS_BATCH_H
#define ENVS_BATCH_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>
#include <string.h>

#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "words of seeds and characters are little-endian here; the installation goes on without this module"
#endif

enum { MAX_ARRAYS = 16, MAX_SEED_WORDS = 624 };

typedef struct {
    Py_buffer views[MAX_ARRAYS];
    int count;
} Arrays;

static void arrays_release(Arrays *arrays) {
    while (arrays->count) PyBuffer_Release(&arrays->views[--arrays->count]);
}

/* Open the arrays of a tuple, of the given sizes in bytes at least; 0 and a Python error where one does not fit. */
static int arrays_open(Arrays *arrays, PyObject *tuple, const Py_ssize_t *sizes, int count) {
    arrays->count = 0;
    if (PyTuple_Size(tuple) != count) {
        PyErr_Format(PyExc_ValueError, "%d arrays are needed, not %zd", count, PyTuple_Size(tuple));
        return 0;
    }
    for (; arrays->count < count; arrays->count++) {
        Py_buffer *view = &arrays->views[arrays->count];
        if (PyObject_GetBuffer(PyTuple_GetItem(tuple, arrays->count), view, PyBUF_WRITABLE)) break;
        if (view->len < sizes[arrays->count]) {
            PyErr_Format(PyExc_ValueError, "array %d has %zd bytes, not %zd", arrays->count, view->len,
                         sizes[arrays->count]);
            PyBuffer_Release(view);
            break;
        }
    }
    if (arrays->count == count) return 1;
    arrays_release(arrays);
    return 0;
}

/* Whether all rows are places of environments; a Python error where not. */
static int rows_fit(const int64_t *rows, Py_ssize_t count, Py_ssize_t num_envs) {
    int fit = 1;
    for (Py_ssize_t i = 0; i < count; i++) fit &= rows[i] >= 0 && rows[i] < num_envs;
    if (!fit) PyErr_Format(PyExc_ValueError, "rows must be 0 to %zd", num_envs - 1);
    return fit;
}

/* Whether a seed of so many bytes can be used; a Python error where not. */
static int seed_fits(Py_ssize_t bytes) {
    if (bytes >= 4 && bytes % 4 == 0 && bytes <= 4 * MAX_SEED_WORDS) return 1;
    PyErr_Format(PyExc_ValueError, "a seed must be below 2**%d", 32 * MAX_SEED_WORDS);
    return 0;
}

/* How many words of a seed count: those of 0 at its end do not. */
static size_t seed_length(const uint32_t *seed, size_t words) {
    while (words > 1 && !seed[words - 1]) words--;
    return words;
}

/* The texts of all grids, one array of characters; `places` has where each cell's begin. */
typedef struct {
    uint32_t *chars;
    const int32_t *places;
    const uint32_t *glyphs;
    Py_ssize_t length, width;
} Texts;

static void texts_put(const Texts *texts, Py_ssize_t env, int cell, int code) {
    memcpy(texts->chars + env * texts->length + texts->places[cell], texts->glyphs + code * texts->width,
           (size_t)texts->width * sizeof(uint32_t));
}

#endif
