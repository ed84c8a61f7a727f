package build

import (
	"cmp"
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

// A change is a step that changes the file system.
type change struct {
	text string // the instruction, for the image's history
	key  string // digest of all inputs: results with the same key are the same
	next string // key of the state after it; "": key
	make func(context.Context) (result, error)
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
	return st.b.at(loc, text, st.reported(ctx, text, func() (bool, error) {
		err := st.expand(c)
		st.b.Inputs.did(st.index, text, loc, c)
		if err != nil {
			return false, err
		}
		step, err := st.change(ctx, c)
		switch {
		case err != nil:
			return false, err
		case step == nil:
			return true, st.configure(c, text)
		}
		return st.step(ctx, step)
	}))
}

// change returns what an instruction changes in the file system; nil if it only changes the
// configuration.
func (st *stage) change(ctx context.Context, c instructions.Command) (*change, error) {
	switch c := c.(type) {
	case *instructions.RunCommand:
		return st.run(ctx, c)
	case *instructions.CopyCommand:
		return st.copy(ctx, c)
	case *instructions.AddCommand:
		return st.add(ctx, c)
	case *instructions.WorkdirCommand:
		return st.workdir(c), nil
	}
	return nil, nil
}

// step executes a change: it finds or makes the result and adds it to the state.
func (st *stage) step(ctx context.Context, c *change) (cached bool, err error) {
	res, cached, err := st.result(ctx, c.key, c.make)
	if err != nil {
		return false, err
	}
	if cached {
		st.saved = time.Duration(min(max(0, res.Seconds), 1e9) * float64(time.Second)) // do not trust the record
	}
	var layer v1.Layer
	if res.Layer != nil {
		if layer, err = st.b.store.Layer(*res.Layer); err != nil {
			return cached, fmt.Errorf("reading the step's layer: %w", err)
		}
		if !res.inTree {
			st.tree.pending = append(st.tree.pending, timedLayer{layer, res.times})
		}
	}
	st.key, st.created = cmp.Or(c.next, c.key), res.Created
	st.record(c.text, layer)
	if res.lostOwners {
		st.key = digestOf(c.key, "lostOwners")
		st.added[len(st.added)-1].History.Comment = "hpcc: " + ownersLost
	}
	return cached, nil
}

// result returns the result of a key: from the store, from the cache of another build or of a
// registry, or else the one that make returns, which it stores.
func (st *stage) result(ctx context.Context, key string, make func(context.Context) (result, error)) (res result, cached bool, err error) {
	res, ok := st.cached(key)
	if !ok && !st.ignoresCache() {
		// Another build may be running the same step: wait for its result.
		defer st.b.store.Alone(ctx, "build", key)()
		res, ok = st.cached(key)
	}
	if ok {
		st.steps = append(st.steps, keyedResult{key, res})
		return res, true, nil
	}
	if res, cached = st.imported(ctx, key); !cached {
		started := time.Now()
		if res, err = make(ctx); err != nil {
			return res, false, err
		}
		if res.Same == "" {
			res.Seconds = time.Since(started).Round(time.Millisecond).Seconds()
			res.Created = time.Now().UTC().Round(0) // without the monotonic clock, as in the record
		}
	}
	if res.lostOwners {
		return res, cached, nil
	}
	data, err := json.Marshal(res)
	if err == nil {
		err = st.b.store.Cache("build", key, data)
	}
	if err != nil {
		return res, false, fmt.Errorf("keeping the step in the cache: %w", err)
	}
	st.steps = append(st.steps, keyedResult{key, res})
	return res, cached, nil
}

// same returns the key that stands for the content behind the key defined. compute reads the content; it
// is called only if no cache has the result.
func (st *stage) same(ctx context.Context, defined string, compute func() (string, error)) (string, error) {
	res, _, err := st.result(ctx, defined, func(context.Context) (res result, err error) {
		res.Same, err = compute()
		return res, err
	})
	if err == nil && res.Same == "" { // a record of another kind
		return compute()
	}
	return res.Same, err
}

// cached looks up a key in the store. A record without its layer is a miss.
func (st *stage) cached(key string) (result, bool) {
	var res result
	if st.ignoresCache() {
		return res, false
	}
	data, err := st.b.store.Cached("build", key)
	if errors.Is(err, fs.ErrNotExist) {
		return res, false
	}
	if err == nil {
		err = json.Unmarshal(data, &res)
	}
	if err != nil {
		st.b.badRecord(key, err)
		return result{}, false
	}
	if res.Same != "" && !stepKey().MatchString(res.Same) {
		st.b.badRecord(key, fmt.Errorf("%.80q is not the key of a step", res.Same))
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

// capture returns the function that makes a change by work on a view of the tree. The difference is the
// layer.
func (st *stage) capture(work func(ctx context.Context, dir string) error) func(context.Context) (result, error) {
	return func(ctx context.Context) (result, error) {
		dir, err := st.tree.view(ctx)
		if err != nil {
			return result{}, err
		}
		st.lostOwners.Store(false)
		if err := work(ctx, dir); err != nil {
			st.tree.discard()
			return result{}, err
		}
		res, err := st.keep(ctx, st.tree.commit)
		res.inTree, res.lostOwners = true, st.lostOwners.Load()
		return res, err
	}
}

// fill returns the function that makes a change whose layer write writes, based on the tree in dir, or on
// an empty one. The files are added to the tree only when a later step needs them.
func (st *stage) fill(onEmpty bool, write func(ctx context.Context, dir string,
	w *unpack.LayerWriter) error) func(context.Context) (result, error) {
	return func(ctx context.Context) (res result, err error) {
		dir, done := "", func() {}
		if onEmpty {
			dir, err = st.scratch()
		} else {
			dir, done, err = st.tree.readOnlyView(ctx)
		}
		if err != nil {
			return result{}, err
		}
		defer done()
		var times map[string]time.Time
		res, err = st.keep(ctx, func(out io.Writer) (int, error) {
			notes, err := unpack.OpenNotes(dir)
			if err != nil {
				return 0, err
			}
			w := unpack.NewLayerWriter(out, dir, notes, st.b.now())
			if st.b.Reproducible {
				w.Newest = st.b.stamp
			}
			if err := write(ctx, dir, w); err != nil {
				return 0, err
			}
			times = w.Times
			return w.Close()
		})
		res.times = times
		return res, err
	}
}

// A timedLayer is a layer with the exact times of files, which BuildKit's snapshots keep, too: a
// program that compares times must not take a file for older than it is.
type timedLayer struct {
	v1.Layer
	times map[string]time.Time
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
