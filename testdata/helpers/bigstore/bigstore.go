// Package bigstore writes a store as it looks after a year of work: hundreds of images, their trees
// and layers, and tens of thousands of jobs. Layers are sparse files and have invented digests, so
// a terabyte of them needs no space, and "gc --verify" reports each as damaged. Files of trees are
// hard links to one file, so they need directory entries, but no inodes.
package bigstore

import (
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sync/errgroup"

	"hpcc/store"
)

// A Size is the size of a store.
type Size struct {
	Images int   // images; one in five has a second name
	Unused int   // more images without a name, a month old, which gc removes
	Files  int   // files in each image's tree
	Layer  int64 // bytes of each layer; an image has two of its own and shares three
	Jobs   int   // jobs; see [Make]
}

// Full is the size of a store of 1 TB.
var Full = Size{Images: 500, Unused: 10, Files: 4000, Layer: 900 << 20, Jobs: 50_000}

// Small is the size of a store for tests. Make takes less than a second for it.
var Small = Size{Images: 5, Unused: 1, Files: 20, Layer: 1 << 20, Jobs: 120}

// period is the time over which the jobs and images are spread.
const period = 365 * 24 * time.Hour

// Make creates a store of a size in the directory dir, as of the time now.
//
// Among 100 consecutive jobs, 84 are single tasks, 12 are arrays of 10 tasks with a record each, and 3
// are arrays of 500 tasks with collected records. One has no job.json: its script was submitted by
// hand. In 8 of them tasks failed, one was cancelled, and in every thousandth job a task was lost.
// The newest [OpenJobs] jobs are open. Four in five jobs have a scheduler, the others ran on this
// machine. Names are those of [Names].
func Make(dir string, size Size, now time.Time) error {
	if _, err := store.Open(dir); err != nil {
		return err
	}
	if err := makeImages(dir, size, now); err != nil {
		return err
	}
	jobs := filepath.Join(dir, "jobs")
	natives := make([]string, size.Jobs)
	var g errgroup.Group
	g.SetLimit(8)
	for i := range size.Jobs {
		g.Go(func() (err error) {
			natives[i], err = makeJob(jobs, i, size.Jobs, now)
			return err
		})
	}
	if err := g.Wait(); err != nil {
		return err
	}
	f, err := os.Create(filepath.Join(jobs, ".natives"))
	if err != nil {
		return err
	}
	defer f.Close()
	for _, line := range natives {
		if _, err := f.WriteString(line); err != nil {
			return err
		}
	}
	return f.Close()
}
