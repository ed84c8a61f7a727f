package main

import (
	"context"
	"fmt"
	"io"
	"log"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"

	"hpcc/testdata/helpers/testenv"
)

// fill runs a command on file systems with a little more free space each time, until it succeeds.
// $1 is the limit of the tmpfs ("size" or "nr_inodes"), $2 the step, $3 the maximum; the command
// follows. $P is the initial content of the store. Each failure prints a line with FAULT.
const fill = `
limit=$1 step=$2 most=$3; shift 3
fault() { echo "FAULT $limit +$room: $*"; }
whole() { # what is in the store is whole, and nothing is under way
	[ -z "$(ls $S/tmp 2>/dev/null)" ] || fault "left in tmp: $(ls $S/tmp)"
	for t in $S/trees/* $S/made; do
		[ ! -e $t ] || [ -e $t/.hpcc/image.json ] || fault "half a tree: $t"
	done
	for d in $S/blobs/sha256/*; do
		[ ! -e $d ] || [ "$(sha256sum <$d | cut -c1-64)" = "$(basename $d)" ] || fault "a blob is not whole: $d"
	done
	for n in $S/.[!.]* $S/.hpcc-*; do [ ! -e $n ] || fault "left: $n"; done
}
room=-$step failed=0
[ $limit = nr_inodes ] || room=$((4-step)) # a size of 0 is not a limit
while :; do
	room=$((room+step))
	[ $room -le $most ] || { fault "it never succeeds"; exit; }
	mount -t tmpfs -o size=200m,mode=755 t $S
	cp -a $P/. $S
	if [ $limit = size ]; then
		mount -t tmpfs -o remount,size=$(($(df -k --output=used $S | tail -n 1)+room))k t $S
	else
		mount -t tmpfs -o remount,nr_inodes=$(($(df --output=iused $S | tail -n 1)+room)) t $S
	fi
	ls $S/refs >$T/refs 2>/dev/null
	if "$@" >$T/out 2>&1; then
		whole
		umount $S
		[ $failed -gt 0 ] || fault "it never failed"
		echo "failed $failed times, succeeds with $room more"
		exit
	else
		status=$?
	fi
	failed=$((failed+1))
	[ $status = 1 ] || [ $status = 125 ] || fault "status $status: $(cat $T/out)"
	grep -q "no space left on device" $T/out && grep -q "$S" $T/out && grep -q "free space" $T/out || fault "it says: $(cat $T/out)"
	whole
	ls $S/refs 2>/dev/null | diff $T/refs - >/dev/null || [ $KEEPS = 1 ] || fault "a name: $(ls $S/refs)"
	mount -t tmpfs -o remount,size=200m,nr_inodes=100000 t $S
	"$@" >$T/out 2>&1 || fault "with room again: $(cat $T/out)"
	whole
	umount $S
done
`

// TestFullDisk lets each write of a command meet a full disk or a limit of files. The error must
// name the cause, and the command must leave no incomplete files and work with more space.
func TestFullDisk(t *testing.T) {
	t.Parallel()
	testenv.Slow(t)
	needs(t, "busybox", "userns")
	top := t.TempDir()
	t.Cleanup(func() { exec.Command("chmod", "-R", "u+rwX", top).Run() })
	ref := fillPlaces(t, top)
	for _, c := range []struct {
		name, before  string
		keeps         string // 1 if the image may stay when only its tree does not fit
		bytes, inodes int    // steps, in KiB and in files
		args          []string
	}{
		{"pull", "empty", "1", 160, 5, []string{"pull", ref, "img"}},
		{"load", "empty", "1", 160, 5, []string{"load", top + "/root.tar", "img"}},
		{"load layout", "empty", "1", 160, 5, []string{"load", top + "/oci.tar", "img"}},
		{"unpack", "full", "0", 160, 5, []string{"unpack", "base", "S/made"}},
		{"save", "full", "0", 160, 1, []string{"save", "base", "S/saved.tar"}},
		{"first run", "flat", "0", 160, 5, []string{"run", "base", "--", "true"}},
		{"build", "full", "1", 160, 4, []string{"build", "--progress=plain", "-t", "made", top + "/context"}},
	} {
		for limit, step := range map[string]int{"size": c.bytes, "nr_inodes": c.inodes} {
			t.Run(c.name+" "+limit, func(t *testing.T) {
				store := filepath.Join(t.TempDir(), "store")
				testenv.Check(t, os.Mkdir(store, 0o755))
				args := []string{"-Urm", "sh", "-c", fill, "sh", limit, fmt.Sprint(step), fmt.Sprint(200 * step), filepath.Join(bin, "hpcc")}
				for _, a := range c.args {
					args = append(args, strings.ReplaceAll(a, "S/", store+"/"))
				}
				cmd := exec.Command("unshare", args...)
				cmd.Env = append(os.Environ(), "S="+store, "T="+t.TempDir(), "P="+filepath.Join(top, c.before), "HPCC_STORE="+store, "KEEPS="+c.keeps, "LC_ALL=C")
				out, err := cmd.CombinedOutput()
				if err != nil || strings.Contains(string(out), "FAULT") {
					t.Errorf("%v\n%s", err, out)
				}
				t.Logf("%s", out)
			})
		}
	}
}

// fillPlaces creates the files that the commands need, and returns the reference of an image.
func fillPlaces(t *testing.T, top string) (ref string) {
	t.Helper()
	busy, err := testenv.Busybox()
	testenv.Check(t, err)
	script := `mkdir -p r/bin r/d context full empty && cp "$0" r/bin/busybox && ln -s busybox r/bin/sh && ln -s busybox r/bin/true && ln -s busybox r/bin/seq
for i in $(seq 30); do seq $((i*50)) >r/d/$i; done
tar cf root.tar -C r . && hpcc --version >/dev/null
HPCC_STORE=$PWD/full hpcc load root.tar base >/dev/null
HPCC_STORE=$PWD/full hpcc save base oci.tar
HPCC_STORE=$PWD/full hpcc save base base.docker.tar
cp -a full flat && chmod -R u+w flat/trees && rm -rf flat/trees/*
seq 20000 >context/data
printf 'FROM base\nCOPY data /data\nRUN for i in $(seq 30); do echo $i >/f$i; done; seq 20000 >/more\nRUN true\n' >context/Dockerfile`
	cmd := exec.Command("sh", "-ec", script, busy)
	cmd.Dir = top
	cmd.Env = append(os.Environ(), "PATH="+bin+":"+os.Getenv("PATH"))
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	server := httptest.NewServer(registry.New(registry.Logger(log.New(io.Discard, "", 0))))
	t.Cleanup(server.Close)
	ref = strings.TrimPrefix(server.URL, "http://") + "/img:1"
	img, err := tarball.ImageFromPath(filepath.Join(top, "base.docker.tar"), nil)
	testenv.Check(t, err)
	ls, err := img.Layers()
	testenv.Check(t, err)
	img, err = mutate.AppendLayers(empty.Image, ls...)
	testenv.Check(t, err)
	r, err := name.ParseReference(ref, name.Insecure)
	testenv.Check(t, err)
	testenv.Check(t, remote.Write(r, img, remote.WithContext(context.Background())))
	return ref
}
