package build

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/moby/buildkit/frontend/dockerfile/instructions"
	"github.com/moby/buildkit/frontend/dockerfile/parser"

	"hpcc/store"
	"hpcc/unpack"
)

// keyVersion must change if the same instruction gives a different layer than before.
const keyVersion = "hpcc step 9"

// digestOf returns the key of a step: a digest of its strings, each with its length, so that
// different lists never collide.
func digestOf(parts ...string) string {
	h := sha256.New()
	for _, w := range append([]string{keyVersion}, parts...) {
		_ = binary.Write(h, binary.LittleEndian, uint64(len(w)))
		_, _ = io.WriteString(h, w)
	}
	return hex.EncodeToString(h.Sum(nil))
}

// A result is the cached result of a step: its layer, nil if nothing changed, or the key of
// an equivalent step.
type result struct {
	Layer   *store.LayerInfo `json:"layer"`
	Same    string           `json:"same,omitempty"`
	Seconds float64          `json:"seconds,omitempty"` // duration of the step; missing in older records
	Created time.Time        `json:"created"`           // when the step ended

	times      map[string]time.Time // of files whose times in the layer are rounded down
	inTree     bool                 // the stage's tree already has the change
	lostOwners bool                 // owners were lost: another host could give a different layer
}

// do executes one instruction. loc is its position; for triggers, that of FROM.
func (st *stage) do(ctx context.Context, c instructions.Command, loc []parser.Range) error {
	text := written(c)
	st.number++
	if err := st.await(ctx, c); err != nil {
		return err
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	st.report(Event{Text: text})
	started := time.Now()
	st.saved = 0
	err := st.expand(c)
	st.b.Inputs.did(st.index, text, loc, c)
	cached := true
	if err == nil {
		switch c := c.(type) {
		case *instructions.RunCommand:
			cached, err = st.run(ctx, c)
		case *instructions.CopyCommand:
			cached, err = st.copy(ctx, c)
		case *instructions.AddCommand:
			cached, err = st.add(ctx, c)
		case *instructions.WorkdirCommand:
			cached, err = st.workdir(ctx, c)
		default:
			err = st.configure(c, text)
		}
	}
	if err != nil {
		st.fail(ctx, text, started)
		return st.b.at(loc, text, err)
	}
	e := Event{Text: text, Done: true, Cached: cached, Took: time.Since(started)}
	if cached {
		e.Saved = max(0, st.saved-e.Took)
	}
	st.report(e)
	return nil
}

// change executes an instruction that changes the file system. key must include all inputs.
// work makes the changes in the directory dir; the difference is the layer.
func (st *stage) change(ctx context.Context, text, key string, work func(dir string) error) (bool, error) {
	return st.step(ctx, text, key, func() (result, error) { return st.capture(ctx, work) })
}

// write executes an instruction that adds files to the image: fill writes the layer, based
// on the tree in dir. The files are added to the tree only when a later step needs them.
func (st *stage) write(ctx context.Context, text, key string, fill func(dir string, w *unpack.LayerWriter) error) (bool, error) {
	return st.step(ctx, text, key, func() (result, error) {
		dir, done, err := st.tree.readOnlyView(ctx)
		if err != nil {
			return result{}, err
		}
		defer done()
		return st.fill(ctx, dir, fill)
	})
}

// fill stores the layer that adds files to the tree in dir.
func (st *stage) fill(ctx context.Context, dir string, fill func(dir string, w *unpack.LayerWriter) error) (result, error) {
	var times map[string]time.Time
	res, err := st.keep(ctx, func(out io.Writer) (int, error) {
		notes, err := unpack.OpenNotes(dir)
		if err != nil {
			return 0, err
		}
		w := unpack.NewLayerWriter(out, dir, notes, st.b.now())
		if st.b.Reproducible {
			w.Newest = st.b.stamp
		}
		if err := fill(dir, w); err != nil {
			return 0, err
		}
		times = w.Times
		return w.Close()
	})
	res.times = times
	return res, err
}

// A timedLayer is a layer with the exact times of files, which BuildKit's snapshots keep, too: a
// program that compares times must not take a file for older than it is.
type timedLayer struct {
	v1.Layer
	times map[string]time.Time
}

// step looks up a step in the cache, or else runs it.
func (st *stage) step(ctx context.Context, text, key string, make func() (result, error)) (cached bool, err error) {
	st.key = key
	res, ok := st.cached(key)
	if !ok && !st.ignoresCache() {
		// Another build may be running the same step: wait for its result.
		defer st.b.store.Alone(ctx, "build", key)()
		res, ok = st.cached(key)
	}
	if !ok {
		if res, ok = st.imported(ctx, key); !ok {
			started := time.Now()
			if res, err = make(); err != nil {
				return false, err
			}
			res.Seconds = time.Since(started).Round(time.Millisecond).Seconds()
			res.Created = time.Now().UTC().Round(0) // without the monotonic clock, as in the record
		}
		if res.lostOwners {
			st.key = digestOf(key, "lostOwners")
		} else if err := st.learn(key, res); err != nil {
			return false, err
		}
	} else {
		st.steps = append(st.steps, keyedResult{key, res})
	}
	if ok {
		st.saved = time.Duration(min(max(0, res.Seconds), 1e9) * float64(time.Second)) // do not trust the record
	}
	st.created = res.Created
	if res.lostOwners {
		defer st.mark()
	}
	if res.Layer == nil {
		st.record(text, nil)
		return ok, nil
	}
	layer, err := st.b.store.Layer(*res.Layer)
	if err != nil {
		return ok, fmt.Errorf("reading the step's layer: %w", err)
	}
	st.record(text, layer)
	if !res.inTree {
		st.tree.pending = append(st.tree.pending, timedLayer{layer, res.times})
	}
	return ok, nil
}

// learn stores the result of a step.
func (st *stage) learn(key string, res result) error {
	data, err := json.Marshal(res)
	if err == nil {
		err = st.b.store.Cache("build", key, data)
	}
	if err != nil {
		return fmt.Errorf("keeping the step in the cache: %w", err)
	}
	st.steps = append(st.steps, keyedResult{key, res})
	return nil
}

// same returns the key of the step that is known to be equivalent to the one with key defined.
func (st *stage) same(ctx context.Context, defined string) (string, bool) {
	res, ok := st.cached(defined)
	if !ok {
		res, ok = st.imported(ctx, defined)
	}
	if ok = ok && stepKey().MatchString(res.Same); ok {
		st.steps = append(st.steps, keyedResult{defined, res})
	}
	return res.Same, ok
}

// cached looks up a step. A record without its layer is a miss.
func (st *stage) cached(key string) (result, bool) {
	var res result
	if st.ignoresCache() {
		return res, false
	}
	data, err := st.b.store.Cached("build", key)
	if err != nil {
		if !errors.Is(err, fs.ErrNotExist) {
			st.b.badRecord(key, err)
		}
		return res, false
	}
	if err := json.Unmarshal(data, &res); err != nil {
		st.b.badRecord(key, err)
		return result{}, false
	}
	if res.Layer != nil && !st.b.store.HasLayer(*res.Layer) {
		return result{}, false
	}
	return res, true
}

// badRecord reports a record that cannot be read; its step runs again.
func (b *builder) badRecord(key string, err error) {
	b.report(Event{Warning: fmt.Sprintf("reading the build cache, record %.12s: %v", key, err)})
}

// capture runs a step on a view of the tree and stores the changes.
func (st *stage) capture(ctx context.Context, work func(dir string) error) (result, error) {
	dir, err := st.tree.view(ctx)
	if err != nil {
		return result{}, err
	}
	st.lostOwners.Store(false)
	if err := work(dir); err != nil {
		st.tree.discard()
		return result{}, err
	}
	res, err := st.keep(ctx, st.tree.commit)
	res.inTree, res.lostOwners = true, st.lostOwners.Load()
	return res, err
}

// keep stores the layer that write writes, an uncompressed tar, unless it has no entries.
func (st *stage) keep(ctx context.Context, write func(w io.Writer) (entries int, err error)) (result, error) {
	var n int
	info, err := st.b.store.PutLayer(ctx, st.layerType(), func(w io.Writer) (err error) {
		n, err = write(w)
		return err
	})
	if err != nil || n == 0 {
		return result{}, err
	}
	return result{Layer: &info}, nil
}
