/* Rooms of Sokoban in C: draw_room of envs/sokoban/generator.py, and a batch of rooms that are drawn, shown and played.
 *
 * The same rooms, texts and numbers as from Python. Called by generator.py and vector.py only.
 */
#include "../_batch.h"
#include "_search.h"
#include "_twister.h"

enum { BOX_ON = 3, BOX = 4, PLAYER = 5, PLAYER_ON = 6 };
enum { TRIES = 4, LONGEST_WALK = 3 };
static const double P_TURN = 0.35, STEP_REWARD = -0.1, SOLVED_REWARD = 10.0;

typedef struct {
    int height, width, num_boxes, depth;
    Py_ssize_t max_states;
} Shape;

/* A room, and what drawing one needs; arrays of one number for each cell. */
typedef struct {
    uint8_t *structure, *occupied;
    uint16_t *free, *targets, *boxes;
    int player;
    void *memory;
} Room;

static int room_allocate(Room *room, const Shape *shape) {
    size_t cells = (size_t)shape->height * (size_t)shape->width;
    uint16_t *memory = calloc(4 * cells, sizeof(uint16_t));
    if (!memory) return 0;
    room->memory = memory;
    room->free = memory, room->targets = memory + cells, room->boxes = memory + 2 * cells;
    room->structure = (uint8_t *)(memory + 3 * cells), room->occupied = room->structure + cells;
    return 1;
}

static int between(int value, int lowest, int highest) {
    return value < lowest ? lowest : value > highest ? highest : value;
}

/* Floor by a random walk; returns how many cells are free. */
static int draw_topology(const Shape *shape, Twister *walk, Room *room) {
    static const int directions[4][2] = {{1, 0}, {0, 1}, {-1, 0}, {0, -1}};
    /* Cells around the walk that become floor, as (row, column); unused places repeat the middle. */
    static const int masks[5][4][2] = {{{0, -1}, {0, 0}, {0, 1}, {0, 0}},
                                       {{-1, 0}, {0, 0}, {1, 0}, {0, 0}},
                                       {{0, -1}, {0, 0}, {1, 0}, {0, 0}},
                                       {{0, -1}, {0, 0}, {1, -1}, {1, 0}},
                                       {{0, 0}, {0, 1}, {1, 0}, {0, 0}}};
    const int width = shape->width, last_row = shape->height - 2, last_column = width - 2;
    const int steps = (int)(1.7 * (shape->height + width));
    memset(room->structure, WALL, (size_t)(shape->height * width));
    const int *direction = directions[twister_choice(walk, 4)];
    int row = 1 + (int)twister_choice(walk, (uint32_t)shape->height - 1);
    int column = 1 + (int)twister_choice(walk, (uint32_t)width - 1);
    for (int i = 0; i < steps; i++) {
        if (twister_uniform(walk) < P_TURN) direction = directions[twister_choice(walk, 4)];
        row = between(row + direction[0], 1, last_row);
        column = between(column + direction[1], 1, last_column);
        const int(*mask)[2] = masks[twister_choice(walk, 5)];
        for (int k = 0; k < 4; k++) {
            int r = row + mask[k][0], c = column + mask[k][1];
            if (r > 0 && r <= last_row && c > 0 && c <= last_column) room->structure[r * width + c] = FLOOR;
        }
    }
    int count = 0;
    for (int cell = 0; cell < shape->height * width; cell++)
        if (room->structure[cell]) room->free[count++] = (uint16_t)cell;
    return count;
}

/* One of the free cells, which is taken out of them. */
static int take_free(Room *room, int *count, Twister *placing) {
    uint16_t *taken = room->free + twister_masked(placing, (uint32_t)*count);
    int cell = *taken;
    --*count;
    memmove(taken, taken + 1, (size_t)(room->free + *count - taken) * sizeof(uint16_t));
    return cell;
}

/* Up to three random steps over free cells. */
static void walk_about(const Shape *shape, double p_move, Twister *walk, Room *room) {
    const int steps[4] = {-shape->width, shape->width, -1, 1};
    int visited[LONGEST_WALK + 1] = {room->player};
    if (twister_uniform(walk) > p_move) return;
    for (int taken = 1; taken <= LONGEST_WALK; taken++) {
        int ways[4], count = 0;
        for (int k = 0; k < 4; k++) {
            int cell = room->player + steps[k], barred = room->structure[cell] == WALL;
            for (int i = 0; i < shape->num_boxes; i++) barred |= room->boxes[i] == cell;
            for (int i = 0; i < taken; i++) barred |= visited[i] == cell;
            if (!barred) ways[count++] = cell;
        }
        if (!count) return;
        room->player = visited[taken] = ways[twister_choice(walk, (uint32_t)count)];
        if (twister_uniform(walk) > 0.5) return;
    }
}

/* The generators that a room is drawn from. */
typedef struct {
    Twister walk, placing;
} Source;

/* Seed sources for up to LANES rooms. */
static void sources_seed(Source sources[LANES], const char *seeds, Py_ssize_t stride, Py_ssize_t count) {
    Twister *walks[LANES], *placings[LANES];
    const uint32_t *words[LANES];
    uint32_t lowest[LANES];
    for (int lane = 0; lane < LANES; lane++) {
        words[lane] = (const uint32_t *)(seeds + (lane < count ? lane : 0) * stride);
        lowest[lane] = words[lane][0];
        walks[lane] = &sources[lane].walk, placings[lane] = &sources[lane].placing;
    }
    twisters_seed_words(walks, words, (size_t)stride / 4);
    twisters_seed(placings, lowest);
}

/* The room of a source: 1, or 0 where the originals fail, or -1 where memory runs out. */
static int draw(const Shape *shape, Source *source, Room *room) {
    Twister *walk = &source->walk, *placing = &source->placing;
    for (int attempt = 0; attempt < TRIES; attempt++) {
        int count = draw_topology(shape, walk, room), targets = 0;
        if (count <= shape->num_boxes + 1) return 0;
        room->player = take_free(room, &count, placing);
        for (int i = 0; i < shape->num_boxes; i++) room->structure[take_free(room, &count, placing)] = TARGET;
        for (int cell = 0; cell < shape->height * shape->width; cell++)
            if (room->structure[cell] == TARGET) room->boxes[targets] = room->targets[targets] = (uint16_t)cell, targets++;
        Best best = {.player = room->player, .boxes = room->boxes};
        if (!search(room->structure, shape->width, room->player, shape->depth, (size_t)shape->max_states,
                    (size_t)targets, room->targets, room->occupied, &best))
            return -1;
        if (best.displacement) {
            room->player = best.player;
            walk_about(shape, best.displacement == 1 ? 0.8 : 0.5, walk, room);
            return 1;
        }
    }
    return 0;
}

static int shape_check(const Shape *shape) {
    if (shape->height >= 4 && shape->height <= 100 && shape->width >= 4 && shape->width <= 100 && shape->num_boxes >= 1 &&
        shape->num_boxes <= shape->height * shape->width && shape->max_states >= 0 && shape->max_states <= 0x40000000)
        return 1;
    PyErr_SetString(PyExc_ValueError, "a side must be 4 to 100, num_boxes 1 to the number of cells, max_states at most 2**30");
    return 0;
}

static PyObject *draw_room(PyObject *module, PyObject *args) {
    Shape shape;
    Room room;
    Source sources[LANES];
    const char *seed;
    Py_ssize_t bytes;
    PyObject *boxes = NULL, *result = NULL;
    (void)module;
    if (!PyArg_ParseTuple(args, "iiiiny#", &shape.height, &shape.width, &shape.num_boxes, &shape.depth, &shape.max_states,
                          &seed, &bytes) || !shape_check(&shape))
        return NULL;
    if (!seed_fits(bytes)) return NULL;
    if (!room_allocate(&room, &shape)) return PyErr_NoMemory();
    int found;
    Py_BEGIN_ALLOW_THREADS
    sources_seed(sources, seed, bytes, 1);
    found = draw(&shape, sources, &room);
    Py_END_ALLOW_THREADS
    if (found < 0) {
        PyErr_NoMemory();
    } else if (!found) {
        Py_INCREF(Py_None);
        result = Py_None;
    } else if ((boxes = PyList_New(0))) {
        int failed = 0;
        for (int i = 0; i < shape.num_boxes && !failed; i++) {
            PyObject *cell = PyLong_FromLong(room.boxes[i]);
            failed = !cell || PyList_Append(boxes, cell);
            Py_XDECREF(cell);
        }
        if (!failed)
            result = Py_BuildValue("y#iO", room.structure, (Py_ssize_t)(shape.height * shape.width), room.player, boxes);
        Py_DECREF(boxes);
    }
    free(room.memory);
    return result;
}

/* A batch: arrays by environment, in the order of vector.py. */
enum { GROUNDS, BOXES, PLAYERS, ON_TARGET, TURNS, INVALID, TEXTS, PLACES, GLYPHS, STATE_ARRAYS };
enum { NUMBERS = STATE_ARRAYS, FLAGS, PLAY_ARRAYS };

typedef struct {
    Arrays arrays;
    Py_ssize_t num_envs, cells;
    uint8_t *grounds, *boxes;
    int32_t *players, *on_target, *turns, *invalid;
    Texts texts;
} Batch;

static int batch_open(Batch *batch, PyObject *tuple, const Shape *shape, int count) {
    const Py_ssize_t n = batch->num_envs, cells = shape->height * shape->width;
    const Py_ssize_t sizes[PLAY_ARRAYS] = {n * cells, n * cells, n * 4, n * 4, n * 4, n * 4,
                                           n * batch->texts.length * 4, cells * 4, (PLAYER_ON + 1) * batch->texts.width * 4,
                                           n * 5 * 8, n * 4};
    if (!shape_check(shape) || !arrays_open(&batch->arrays, tuple, sizes, count)) return 0;
    const Py_buffer *views = batch->arrays.views;
    batch->cells = cells;
    batch->grounds = views[GROUNDS].buf, batch->boxes = views[BOXES].buf;
    batch->players = views[PLAYERS].buf, batch->on_target = views[ON_TARGET].buf;
    batch->turns = views[TURNS].buf, batch->invalid = views[INVALID].buf;
    batch->texts.chars = views[TEXTS].buf, batch->texts.places = views[PLACES].buf, batch->texts.glyphs = views[GLYPHS].buf;
    return 1;
}

static int code_of(const uint8_t *grounds, const uint8_t *boxes, int player, int cell) {
    if (cell == player) return grounds[cell] == TARGET ? PLAYER_ON : PLAYER;
    if (boxes[cell]) return grounds[cell] == TARGET ? BOX_ON : BOX;
    return grounds[cell];
}

static void begin_one(Batch *batch, Py_ssize_t env, const Room *room, int num_boxes) {
    uint8_t *grounds = batch->grounds + env * batch->cells, *boxes = batch->boxes + env * batch->cells;
    memcpy(grounds, room->structure, (size_t)batch->cells);
    memset(boxes, 0, (size_t)batch->cells);
    for (int i = 0; i < num_boxes; i++) boxes[room->boxes[i]] = 1;
    batch->players[env] = room->player;
    batch->on_target[env] = batch->turns[env] = batch->invalid[env] = 0;
    for (int cell = 0; cell < batch->cells; cell++)
        texts_put(&batch->texts, env, cell, code_of(grounds, boxes, room->player, cell));
}

/* Draw rooms of `rows` from as many seeds; returns the places in `rows` whose seed gives none. */
static PyObject *begin(PyObject *module, PyObject *args) {
    Shape shape;
    Batch batch = {0};
    Room room = {0};
    Source sources[LANES];
    PyObject *tuple, *failed = NULL;
    Py_buffer rows, seeds;
    (void)module;
    if (!PyArg_ParseTuple(args, "O(niiiinnn)y*y*", &tuple, &batch.num_envs, &shape.height, &shape.width, &shape.num_boxes,
                          &shape.depth, &shape.max_states, &batch.texts.length, &batch.texts.width, &rows, &seeds))
        return NULL;
    const Py_ssize_t count = rows.len / (Py_ssize_t)sizeof(int64_t), stride = count ? seeds.len / count : 4;
    const int64_t *envs = rows.buf;
    int found = 1;
    if (!batch_open(&batch, tuple, &shape, STATE_ARRAYS)) goto done;
    if (!rows_fit(envs, count, batch.num_envs) || !seed_fits(stride)) goto done;
    if (!room_allocate(&room, &shape)) {
        PyErr_NoMemory();
        goto done;
    }
    failed = PyList_New(0);
    for (Py_ssize_t i = 0; failed && i < count; i++) {
        Py_BEGIN_ALLOW_THREADS
        if (i % LANES == 0) sources_seed(sources, (const char *)seeds.buf + i * stride, stride, count - i);
        found = draw(&shape, &sources[i % LANES], &room);
        Py_END_ALLOW_THREADS
        if (found > 0) {
            begin_one(&batch, (Py_ssize_t)envs[i], &room, shape.num_boxes);
        } else {
            PyObject *place = found ? PyErr_NoMemory() : PyLong_FromSsize_t(i);
            if (!place || PyList_Append(failed, place)) Py_CLEAR(failed);
            Py_XDECREF(place);
        }
    }
done:
    free(room.memory);
    arrays_release(&batch.arrays);
    PyBuffer_Release(&rows);
    PyBuffer_Release(&seeds);
    return failed;
}

/* Move the player; 1 where anything moved. `change` gets by how much the boxes on targets changed. */
static int move(Batch *batch, Py_ssize_t env, int step, int *change) {
    uint8_t *grounds = batch->grounds + env * batch->cells, *boxes = batch->boxes + env * batch->cells;
    const int old = batch->players[env], new = old + step;
    if (grounds[new] == WALL) return 0;
    if (boxes[new]) {
        const int beyond = new + step;
        if (grounds[beyond] == WALL || boxes[beyond]) return 0;
        boxes[new] = 0, boxes[beyond] = 1;
        /* FLOOR and TARGET are 1 and 2. */
        *change = grounds[beyond] - grounds[new];
        texts_put(&batch->texts, env, beyond, code_of(grounds, boxes, new, beyond));
    }
    batch->players[env] = new;
    texts_put(&batch->texts, env, old, grounds[old]);
    texts_put(&batch->texts, env, new, code_of(grounds, boxes, new, new));
    return 1;
}

/* Play moves (-1 behind the last of each) where `ended` is not set; fills the arrays of numbers (reward, step, box, bonus,
 * penalty) and flags (success, truncated, effective, valid). */
static PyObject *play(PyObject *module, PyObject *args) {
    Shape shape;
    Batch batch = {0};
    PyObject *tuple, *result = NULL;
    Py_buffer ended, moves;
    int max_turns, invalid_counts;
    double charge;
    (void)module;
    if (!PyArg_ParseTuple(args, "O(niiiinnn)ipdy*y*", &tuple, &batch.num_envs, &shape.height, &shape.width,
                          &shape.num_boxes, &shape.depth, &shape.max_states, &batch.texts.length, &batch.texts.width,
                          &max_turns, &invalid_counts, &charge, &ended, &moves))
        return NULL;
    const Py_ssize_t n = batch.num_envs, most = n ? moves.len / n : 0;
    const int steps[4] = {-shape.width, shape.width, -1, 1};
    if (!batch_open(&batch, tuple, &shape, PLAY_ARRAYS)) goto done;
    if (ended.len < n || most < 1) {
        PyErr_SetString(PyExc_ValueError, "there must be a flag and a move for each environment");
        goto done;
    }
    double *numbers = batch.arrays.views[NUMBERS].buf;
    uint8_t *flags = batch.arrays.views[FLAGS].buf;
    for (Py_ssize_t env = 0; env < n; env++) {
        if (((const char *)ended.buf)[env]) continue;
        const int8_t *answer = (const int8_t *)moves.buf + env * most;
        const int valid = answer[0] >= 0;
        double step = valid ? 0.0 : STEP_REWARD;
        int box = 0, effective = 0, solved = !valid && batch.on_target[env] == shape.num_boxes;
        for (Py_ssize_t k = 0; k < most && answer[k] >= 0 && !solved; k++) {
            int change = 0;
            effective |= move(&batch, env, steps[answer[k] & 3], &change);
            step += STEP_REWARD;
            box += change;
            solved = (batch.on_target[env] += change) == shape.num_boxes;
        }
        batch.turns[env]++;
        batch.invalid[env] += !valid;
        int64_t limit = max_turns;
        if (!invalid_counts) limit += batch.invalid[env] < max_turns ? batch.invalid[env] : max_turns;
        const double bonus = solved ? SOLVED_REWARD : 0.0, penalty = valid ? 0.0 : charge;
        const double all[5] = {step + box + bonus, step, box, bonus, penalty};
        for (int k = 0; k < 5; k++) numbers[k * n + env] = all[k];
        flags[env] = (uint8_t)solved;
        flags[n + env] = !solved && batch.turns[env] >= limit;
        flags[2 * n + env] = (uint8_t)effective;
        flags[3 * n + env] = (uint8_t)valid;
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
    {"draw_room", draw_room, METH_VARARGS,
     "draw_room(height, width, num_boxes, depth, max_states, seed) -> (structure, player, boxes) or None"},
    {"begin", begin, METH_VARARGS, "begin(arrays, shape, rows, seeds) -> places in rows whose seed gives no room"},
    {"play", play, METH_VARARGS, "play(arrays, shape, max_turns, invalid_counts, penalty, ended, moves)"},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef_Slot slots[] = {{0, NULL}};

static struct PyModuleDef definition = {
    .m_base = PyModuleDef_HEAD_INIT,
    .m_name = "_rooms",
    .m_doc = "Compiled rooms of Sokoban (see generator.py and vector.py).",
    .m_methods = methods,
    .m_slots = slots,
};

PyMODINIT_FUNC PyInit__rooms(void) { return PyModuleDef_Init(&definition); }
