/* A batch of frozen lakes in C: drawn as draw_map of envs/frozenlake/lake.py does, shown and played.
 *
 * The same lakes, slips, texts and numbers as from Python. Called by vector.py only.
 */
#include "../_batch.h"
#include "_pcg.h"

#include <stdlib.h>

enum { FROZEN = 0, HOLE = 1, GOAL = 2 };
/* Code of a cell's text: without the player by what it holds, and with the player. */
static const int EMPTY[3] = {1, 2, 3}, ON[3] = {0, 4, 5};
enum { CODES = 6 };
enum { SLIP_BYTES = 64 }; /* a place in the array of slips; a Pcg in it is copied, since the array need not be aligned */
_Static_assert(sizeof(Pcg) <= SLIP_BYTES, "a Pcg must fit its place");

/* Arrays by environment, in the order of vector.py. */
enum { GROUNDS, PLAYERS, TURNS, SLIPS, TEXTS, PLACES, GLYPHS, STATE_ARRAYS };
enum { NUMBERS = STATE_ARRAYS, FLAGS, PLAY_ARRAYS };

typedef struct {
    Arrays arrays;
    Py_ssize_t num_envs, cells;
    int size;
    uint8_t *grounds;
    int32_t *players, *turns;
    char *slips;
    Texts texts;
} Batch;

static int batch_open(Batch *batch, PyObject *tuple, int count) {
    const Py_ssize_t n = batch->num_envs, cells = batch->cells = batch->size * batch->size;
    const Py_ssize_t sizes[PLAY_ARRAYS] = {n * cells, n * 4, n * 4, n * SLIP_BYTES, n * batch->texts.length * 4,
                                           cells * 4, CODES * batch->texts.width * 4, n * 3 * 8, n * 5};
    if (batch->size < 2 || batch->size > 100) {
        PyErr_SetString(PyExc_ValueError, "size must be 2 to 100");
        return 0;
    }
    if (!arrays_open(&batch->arrays, tuple, sizes, count)) return 0;
    const Py_buffer *views = batch->arrays.views;
    batch->grounds = views[GROUNDS].buf, batch->slips = views[SLIPS].buf;
    batch->players = views[PLAYERS].buf, batch->turns = views[TURNS].buf;
    batch->texts.chars = views[TEXTS].buf, batch->texts.places = views[PLACES].buf, batch->texts.glyphs = views[GLYPHS].buf;
    return 1;
}

/* The cell that a move (Left, Down, Right, Up) leads to; at the edge it leads nowhere. */
static int after(int size, int cell, int move) {
    switch (move) {
    case 0: return cell % size == 0 ? cell : cell - 1;
    case 1: return cell / size == size - 1 ? cell : cell + size;
    case 2: return cell % size == size - 1 ? cell : cell + 1;
    default: return cell / size == 0 ? cell : cell - size;
    }
}

/* `pending` and `seen` have a place for each cell. */
static int reachable(const uint8_t *lake, int size, int start, int *pending, uint8_t *seen) {
    int count = 1;
    memset(seen, 0, (size_t)(size * size));
    pending[0] = start, seen[start] = 1;
    while (count) {
        int here = pending[--count];
        for (int move = 0; move < 4; move++) {
            int cell = after(size, here, move);
            if (lake[cell] == GOAL) return 1;
            if (lake[cell] == FROZEN && !seen[cell]) pending[count++] = cell, seen[cell] = 1;
        }
    }
    return 0;
}

/* The start of the lake of a seed, or -1 where `attempts` lakes have no path to the goal. */
static int draw_lake(uint8_t *lake, int size, double frozen_below, int64_t attempts, Pcg pcg, int *pending, uint8_t *seen) {
    for (; attempts; attempts--) {
        for (int cell = 0; cell < size * size; cell++) lake[cell] = pcg_uniform(&pcg) >= frozen_below ? HOLE : FROZEN;
        int drawn[4];
        for (int i = 0; i < 4; i++) drawn[i] = (int)pcg_below(&pcg, (uint32_t)size);
        int start = drawn[0] * size + drawn[1], goal = drawn[2] * size + drawn[3];
        if (start == goal) continue;
        lake[start] = FROZEN, lake[goal] = GOAL;
        if (reachable(lake, size, start, pending, seen)) return start;
    }
    return -1;
}

/* Draw lakes of `rows` from as many seeds; returns the place in `rows` of the first seed that gives none, or -1. */
static PyObject *begin(PyObject *module, PyObject *args) {
    Batch batch = {0};
    PyObject *tuple, *result = NULL;
    Py_buffer rows, seeds;
    double frozen_below;
    Py_ssize_t attempts, failed = -1;
    int *pending = NULL;
    uint8_t *seen = NULL;
    (void)module;
    if (!PyArg_ParseTuple(args, "O(ninn)dny*y*", &tuple, &batch.num_envs, &batch.size, &batch.texts.length,
                          &batch.texts.width, &frozen_below, &attempts, &rows, &seeds))
        return NULL;
    const Py_ssize_t count = rows.len / (Py_ssize_t)sizeof(int64_t), stride = count ? seeds.len / count : 4;
    const int64_t *envs = rows.buf;
    if (!batch_open(&batch, tuple, STATE_ARRAYS)) goto done;
    if (!rows_fit(envs, count, batch.num_envs) || !seed_fits(stride)) goto done;
    pending = malloc((size_t)batch.cells * sizeof(int));
    seen = malloc((size_t)batch.cells);
    if (!pending || !seen) {
        PyErr_NoMemory();
        goto done;
    }
    Py_BEGIN_ALLOW_THREADS
    for (Py_ssize_t i = 0; i < count && failed < 0; i++) {
        const Py_ssize_t env = (Py_ssize_t)envs[i];
        uint8_t *lake = batch.grounds + env * batch.cells;
        Pcg pcg;
        pcg_seed(&pcg, (const uint32_t *)((const char *)seeds.buf + i * stride), (size_t)stride / 4);
        int start = draw_lake(lake, batch.size, frozen_below, attempts, pcg, pending, seen);
        if (start < 0) {
            failed = i;
            break;
        }
        /* The first number is spent at the reset. */
        pcg_next(&pcg);
        memcpy(batch.slips + env * SLIP_BYTES, &pcg, sizeof(Pcg));
        batch.players[env] = start, batch.turns[env] = 0;
        for (int cell = 0; cell < batch.cells; cell++)
            texts_put(&batch.texts, env, cell, (cell == start ? ON : EMPTY)[lake[cell]]);
    }
    Py_END_ALLOW_THREADS
    result = PyLong_FromSsize_t(failed);
done:
    free(pending);
    free(seen);
    arrays_release(&batch.arrays);
    PyBuffer_Release(&rows);
    PyBuffer_Release(&seeds);
    return result;
}

/* How far the direction turns, as slip_of in lake.py. */
static int slip(Pcg *pcg) {
    const double straight = 1.0 / 3.0, side = (1.0 - straight) / 2.0, u = pcg_uniform(pcg);
    return u < side ? -1 : u < side + straight ? 0 : u < side + straight + side ? 1 : -1;
}

/* Play moves (-1 behind the last of each) where `ended` is not set; fills the arrays of numbers (reward, goal, penalty)
 * and flags (success, terminated, truncated, effective, valid). */
static PyObject *play(PyObject *module, PyObject *args) {
    Batch batch = {0};
    PyObject *tuple, *result = NULL;
    Py_buffer ended, moves;
    int slippery, max_turns;
    double charge;
    (void)module;
    if (!PyArg_ParseTuple(args, "O(ninn)pidy*y*", &tuple, &batch.num_envs, &batch.size, &batch.texts.length,
                          &batch.texts.width, &slippery, &max_turns, &charge, &ended, &moves))
        return NULL;
    const Py_ssize_t n = batch.num_envs, most = n ? moves.len / n : 0;
    if (!batch_open(&batch, tuple, PLAY_ARRAYS)) goto done;
    if (ended.len < n || most < 1) {
        PyErr_SetString(PyExc_ValueError, "there must be a flag and a move for each environment");
        goto done;
    }
    double *numbers = batch.arrays.views[NUMBERS].buf;
    uint8_t *flags = batch.arrays.views[FLAGS].buf;
    for (Py_ssize_t env = 0; env < n; env++) {
        if (((const char *)ended.buf)[env]) continue;
        const int8_t *answer = (const int8_t *)moves.buf + env * most;
        const uint8_t *lake = batch.grounds + env * batch.cells;
        const int first = batch.players[env], valid = answer[0] >= 0;
        int player = first, kind = FROZEN, effective = 0;
        Pcg pcg;
        if (slippery) memcpy(&pcg, batch.slips + env * SLIP_BYTES, sizeof(Pcg));
        /* A hole or the goal ends the episode, and with it the answer. */
        for (Py_ssize_t k = 0; k < most && answer[k] >= 0 && kind == FROZEN; k++) {
            int there = after(batch.size, player, (answer[k] + (slippery ? slip(&pcg) : 0)) & 3);
            effective |= there != player;
            player = there;
            kind = lake[player];
        }
        if (slippery) memcpy(batch.slips + env * SLIP_BYTES, &pcg, sizeof(Pcg));
        if (player != first) {
            texts_put(&batch.texts, env, first, EMPTY[lake[first]]);
            texts_put(&batch.texts, env, player, ON[kind]);
        }
        batch.players[env] = player;
        batch.turns[env]++;
        const double goal = kind == GOAL ? 1.0 : 0.0, penalty = valid ? 0.0 : charge;
        numbers[env] = goal + penalty, numbers[n + env] = goal, numbers[2 * n + env] = penalty;
        flags[env] = kind == GOAL;
        flags[n + env] = kind != FROZEN;
        flags[2 * n + env] = kind == FROZEN && batch.turns[env] >= max_turns;
        flags[3 * n + env] = (uint8_t)effective;
        flags[4 * n + env] = (uint8_t)valid;
    }
    Py_INCREF(Py_None);
    result = Py_None;
done:
    arrays_release(&batch.arrays);
    PyBuffer_Release(&ended);
    PyBuffer_Release(&moves);
    return result;
}

static PyMethodDef methods[] = {
    {"begin", begin, METH_VARARGS,
     "begin(arrays, shape, frozen_below, attempts, rows, seeds) -> place in rows of the first seed without a lake, or -1"},
    {"play", play, METH_VARARGS, "play(arrays, shape, slippery, max_turns, penalty, ended, moves)"},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef_Slot slots[] = {{0, NULL}};

static struct PyModuleDef definition = {
    .m_base = PyModuleDef_HEAD_INIT,
    .m_name = "_lakes",
    .m_doc = "Compiled batches of frozen lakes (see vector.py).",
    .m_methods = methods,
    .m_slots = slots,
};

PyMODINIT_FUNC PyInit__lakes(void) { return PyModuleDef_Init(&definition); }
