// Package source provides the sources of COPY and ADD: directories, URLs and archives.
//
//	Open ─► Dir.Find ─► Sets of Items, with a digest over names, modes and bytes
//	Fetch, Archive
//
// No path leads out of a directory: links are resolved as if it were the root. .dockerignore
// always applies. The store caches the digests of files, so that the next build reads only
// changed files.
package source

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"time"

	securejoin "github.com/cyphar/filepath-securejoin"
	"github.com/moby/patternmatcher"
	"github.com/moby/patternmatcher/ignorefile"

	"hpcc/files"
)

// maxIgnoreFile limits the size of a .dockerignore, in bytes.
const maxIgnoreFile = 1 << 20

// A Dir is a source directory of COPY and ADD: the build context, or the tree of another
// stage or image. No path leads out of it: links are resolved as if it were the root.
type Dir struct {
	Dir    string                         // path
	Of     string                         // description for messages
	Ignore *patternmatcher.PatternMatcher // ignored files, or nil
	hidden []string                       // files with secrets, which are always ignored, slash-separated
	sums   *sums                          // cached digests of the files, or nil
}

// Open opens a build context with its list of ignored files: the file ignore, or else
// .dockerignore in dir. Hidden files, which hold secrets, are ignored too.
func Open(dir, ignore string, hidden ...string) (*Dir, error) {
	abs, err := filepath.Abs(dir)
	if err != nil {
		return nil, fmt.Errorf("finding the build context: %w", err)
	}
	if abs, err = filepath.EvalSymlinks(abs); err != nil {
		return nil, fmt.Errorf("opening the build context: %w", err)
	}
	if err := CheckDir(abs); err != nil {
		return nil, err
	}
	c := &Dir{Dir: abs, Of: "the build context"}
	c.hide(hidden)
	var patterns []string
	names := []string{filepath.Join(abs, ".dockerignore")}
	if ignore != "" {
		names = []string{ignore, names[0]}
	}
	for _, name := range names {
		f, err := files.Open(name)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil { // fail, because the file may keep secrets out of the image
			return nil, fmt.Errorf("reading the list of ignored files: %w", err)
		}
		defer f.Close()
		if patterns, err = readIgnore(f); err == nil {
			c.Ignore, err = patternmatcher.New(patterns)
		}
		if err != nil {
			return nil, fmt.Errorf("reading %s: %w", name, err)
		}
		break
	}
	if len(c.hidden) > 0 {
		for _, h := range c.hidden {
			patterns = append(patterns, patternSpecials().ReplaceAllString(h, `\$0`))
		}
		c.Ignore, err = patternmatcher.New(patterns)
	}
	return c, err
}

// patternSpecials matches the special characters of ignore files.
var patternSpecials = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`[*?\[\]\\!^]`) })

// hide adds those of the files that are in the context to c.hidden.
func (c *Dir) hide(files []string) {
	for _, f := range files {
		real, err := filepath.EvalSymlinks(f)
		if err == nil {
			real, err = filepath.Abs(real)
		}
		if err != nil {
			continue
		}
		for _, file := range []string{f, real} {
			abs, err := filepath.Abs(file)
			if err != nil {
				continue
			}
			if rel, err := filepath.Rel(c.Dir, abs); err == nil && filepath.IsLocal(rel) {
				c.hidden = append(c.hidden, filepath.ToSlash(rel))
			}
		}
	}
}

// readIgnore reads the patterns of an ignore file.
func readIgnore(r io.Reader) ([]string, error) {
	limited := &io.LimitedReader{R: r, N: maxIgnoreFile + 1}
	patterns, err := ignorefile.ReadAll(limited)
	if err == nil && limited.N == 0 {
		err = fmt.Errorf("larger than %d bytes", maxIgnoreFile)
	}
	if err != nil {
		return nil, err
	}
	return patterns, nil
}

// CheckDir returns an error if a build context is not a directory.
func CheckDir(dir string) error {
	fi, err := os.Stat(dir)
	if err != nil {
		return fmt.Errorf("opening the build context: %w", err)
	}
	if !fi.IsDir() {
		return fmt.Errorf("opening the build context %q: not a directory; name the Dockerfile with -f", dir)
	}
	return nil
}

// ignored reports whether the context ignores the file rel (slash-separated).
func (c *Dir) ignored(rel string) (bool, error) {
	if c.Ignore == nil || rel == "." {
		return false, nil
	}
	return c.Ignore.MatchesOrParentMatches(rel)
}

// An Item is one file, link or directory to copy.
type Item struct {
	Path string // path on the host
	Rel  string // path below the copied directory, or "" for the source itself
	Mode fs.FileMode
	Link string // target of a link
	stat fileStat
	Data []byte    // content of a small file that was already read, or nil
	When time.Time // modification time to give the copy; zero: as usual
	// opaque files have no part in the digest of their set.
	opaque bool
}

// Time returns the modification time of the file's content.
func (it Item) Time() time.Time { return time.Unix(0, it.stat.mtime) }

// A Set is the result of one source argument of COPY.
type Set struct {
	Name  string // base name, which a file keeps in a destination directory
	Dir   bool   // the source is a directory, whose contents are copied
	Items []Item // sorted by path component; parents before children
	// Keep is the path that --parents keeps between the destination and the source: the
	// directory of a file, or the directory itself.
	Keep   string
	Remote bool  // the source was downloaded, so an archive is not unpacked
	sums   *sums // cached digests of the context
}

// Cloned marks a set as the files of a clone: .git, which differs between clones of one commit,
// has no part in its digest. Unless it is zero, copies get the time when.
func (s *Set) Cloned(when time.Time) {
	for i := range s.Items {
		it := &s.Items[i]
		it.opaque = it.Rel == ".git" || strings.HasPrefix(it.Rel, ".git/") || strings.Contains(it.Rel, "/.git/")
		it.When = when
	}
}

// Find resolves the sources of COPY. Each path component can be a pattern of
// [filepath.Match]. exclude contains the patterns of --exclude. parents is --parents.
func (c *Dir) Find(sources []string, exclude []string, parents bool) ([]Set, error) {
	var skip *patternmatcher.PatternMatcher
	if len(exclude) > 0 {
		var err error
		if skip, err = patternmatcher.New(exclude); err != nil {
			return nil, fmt.Errorf("reading --exclude: %w", err)
		}
	}
	var out []Set
	for _, w := range sources {
		names, err := c.glob(w, parents)
		if err != nil {
			return nil, err
		}
		for _, n := range names {
			s, err := c.Walk(n, skip)
			if err != nil {
				return nil, err
			}
			if skip != nil && !s.Dir { // Walk has already removed excluded files of a directory
				if excluded, err := skip.MatchesOrParentMatches(s.Name); err != nil || excluded {
					if err != nil {
						return nil, err
					}
					continue
				}
			}
			if parents {
				s.keepParents(n, w)
			}
			out = append(out, s)
		}
	}
	return out, nil
}

// keepParents sets the part of its path that a source keeps: the part after "/./", or else the
// entire path.
func (s *Set) keepParents(name, word string) {
	keep := name
	if before, _, ok := strings.Cut(filepath.ToSlash(word), "/./"); ok {
		if clean := path.Clean("/" + before)[1:]; clean != "" {
			parts := strings.Split(name, "/")
			keep = path.Join(parts[min(len(parts), strings.Count(clean, "/")+1):]...)
		}
	}
	if s.Keep = keep; !s.Dir {
		s.Keep = path.Dir(keep)
	}
}

// glob resolves one source to names relative to the directory. As in BuildKit, a pattern may
// match nothing, and "**" matches any number of directories only with --parents.
func (c *Dir) glob(word string, parents bool) ([]string, error) {
	clean := path.Clean("/" + filepath.ToSlash(word))[1:]
	if rel := path.Clean("./" + filepath.ToSlash(word)); rel == ".." || strings.HasPrefix(rel, "../") {
		return nil, fmt.Errorf("%q leads out of %s; files outside it cannot be copied", word, c.Of)
	}
	if !strings.ContainsAny(clean, "*?[") {
		if clean == "" {
			clean = "."
		}
		return []string{clean}, nil
	}
	names := []string{"."}
	for _, part := range strings.Split(clean, "/") {
		var next []string
		seen := map[string]bool{}
		for _, dir := range names {
			if part == "**" && parents { // this directory and all directories below it
				for _, d := range c.below(dir) {
					if !seen[d] { // "**/**" equals "**"
						seen[d] = true
						next = append(next, d)
					}
				}
				continue
			}
			m, err := c.matches(dir, part)
			if err != nil {
				return nil, fmt.Errorf("reading pattern %q: %w", word, err)
			}
			next = append(next, m...)
		}
		names = next
	}
	return names, nil
}

// below returns dir and all directories below it.
func (c *Dir) below(dir string) []string {
	out := []string{dir}
	full, err := securejoin.SecureJoin(c.Dir, dir)
	if err != nil {
		return nil
	}
	entries, _ := os.ReadDir(full)
	for _, e := range entries {
		if e.IsDir() {
			out = append(out, c.below(path.Join(dir, e.Name()))...)
		}
	}
	return out
}

// matches returns the names in dir that match one component of a pattern.
func (c *Dir) matches(dir, pattern string) ([]string, error) {
	full, err := securejoin.SecureJoin(c.Dir, dir)
	if err != nil {
		return nil, err
	}
	entries, err := os.ReadDir(full)
	if err != nil {
		return nil, nil // a file in place of a directory matches nothing
	}
	var out []string
	for _, e := range entries {
		ok, err := filepath.Match(pattern, e.Name())
		if err != nil {
			return nil, err
		}
		rel := path.Join(dir, e.Name())
		ignored, err := c.ignored(rel)
		if err != nil {
			return nil, err
		}
		if ok && (!ignored || (e.IsDir() && c.Ignore.Exclusions())) {
			out = append(out, rel)
		}
	}
	return out, nil
}

// Digest returns a digest of the names, types, modes and bytes of a set. It ignores times,
// which differ between clones with the same content.
func (s *Set) Digest() (string, error) {
	digests, err := s.sums.digests(s.Items)
	if err != nil {
		return "", err
	}
	h := sha256.New()
	fmt.Fprintf(h, "%q %v %q\n", s.Name, s.Dir, s.Keep)
	var line []byte
	for i, it := range s.Items {
		if it.opaque {
			continue
		}
		line = strconv.AppendQuote(line[:0], it.Rel)
		line = strconv.AppendUint(append(line, ' '), uint64(it.Mode.Type()), 8)
		line = strconv.AppendUint(append(line, ' '), uint64(it.Mode&(fs.ModePerm|fs.ModeSticky)), 8)
		line = strconv.AppendQuote(append(line, ' '), it.Link)
		if it.Mode.IsRegular() {
			line = append(line, digests[i][:]...)
		}
		h.Write(append(line, '\n'))
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}
