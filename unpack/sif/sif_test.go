package sif

import (
	"bytes"
	"crypto"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"syscall"
	"testing"

	format "github.com/apptainer/sif/v2/pkg/sif"
	v1 "github.com/google/go-containerregistry/pkg/v1"

	"hpcc/testdata/helpers/testenv"
)

func TestMain(m *testing.M) { testenv.Run(m) }

// input returns an object for the library.
func input(t testing.TB, kind format.DataType, data string, options ...format.DescriptorInputOpt) format.DescriptorInput {
	t.Helper()
	d, err := format.NewDescriptorInput(kind, strings.NewReader(data), options...)
	testenv.Check(t, err)
	return d
}

// root returns a root file system, which need not be one for these tests.
func root(t testing.TB, fs format.FSType) format.DescriptorInput {
	t.Helper()
	return input(t, format.DataPartition, "hsqs content", format.OptPartitionMetadata(fs, format.PartPrimSys, "arm64"))
}

// library returns a SIF file that the library wrote.
func library(t testing.TB, objects ...format.DescriptorInput) []byte {
	t.Helper()
	b := format.NewBuffer(nil)
	_, err := format.CreateContainer(b, format.OptCreateDeterministic(), format.OptCreateWithDescriptors(objects...))
	testenv.Check(t, err)
	return b.Bytes()
}

func read(b []byte) (*Image, error) { return Read(bytes.NewReader(b), int64(len(b))) }

func TestRead(t *testing.T) {
	key := bytes.Repeat([]byte{0xab}, 20)
	img, err := read(library(t,
		input(t, format.DataDeffile, "Bootstrap: scratch"),
		input(t, format.DataGenericJSON, `{"Env":["A=1"]}`, format.OptObjectName("oci-config.json")),
		root(t, format.FsSquash),
		input(t, format.DataPartition, "overlay", format.OptPartitionMetadata(format.FsExt3, format.PartOverlay, "arm64")),
		input(t, format.DataSignature, "signature", format.OptLinkedGroupID(1), format.OptSignatureMetadata(crypto.SHA256, key)),
		input(t, format.DataSignature, "signature", format.OptLinkedID(3), format.OptSignatureMetadata(crypto.SHA256, nil)),
	))
	testenv.Check(t, err)
	offset, size, err := img.Root()
	if err != nil || offset%4096 != 0 || size != int64(len("hsqs content")) || img.Arch != "arm64" {
		t.Errorf("root file system: %d bytes at %d, %s, %v", size, offset, img.Arch, err)
	}
	if img.config == nil || len(img.config.Env) != 1 {
		t.Errorf("configuration is %v", img.config)
	}
	want := []string{
		"object group 1 is signed by key " + strings.Repeat("AB", 20) + `; hpcc does not verify signatures: use "apptainer verify"`,
		`object 3 is signed by a key without a recorded fingerprint; hpcc does not verify signatures: use "apptainer verify"`,
	}
	if got := img.Signatures(); !reflect.DeepEqual(got, want) {
		t.Errorf("signatures are %q; want %q", got, want)
	}
	if got := img.Ignored(); len(got) != 1 || !strings.Contains(got[0], "an overlay (object 4, 7 bytes)") {
		t.Errorf("notes are %q; want one about the overlay", got)
	}
	b, err := json.Marshal(img.Objects[2])
	testenv.Check(t, err)
	if want := fmt.Sprintf(`{"id":3,"type":"FS","group":1,"offset":%d,"size":12,"fileSystem":"Squashfs","partition":"*System"}`, offset); string(b) != want {
		t.Errorf("object is %s; want %s", b, want)
	}
}

// TestUnusable checks the reasons why a root file system cannot be used.
func TestUnusable(t *testing.T) {
	blob := func(kind format.DataType, v any) (format.DescriptorInput, v1.Hash) {
		b, err := json.Marshal(v)
		testenv.Check(t, err)
		h, _, err := v1.SHA256(bytes.NewReader(b))
		testenv.Check(t, err)
		return input(t, kind, string(b)), h
	}
	_, layerHash := blob(format.DataOCIBlob, "layer")
	oci := func(layers ...v1.Descriptor) []format.DescriptorInput {
		layer, _ := blob(format.DataOCIBlob, "layer")
		config, hash := blob(format.DataOCIBlob, v1.ConfigFile{Architecture: "ppc64le", Config: v1.Config{Env: []string{"A=oci"}}})
		m, hash := blob(format.DataOCIBlob, v1.Manifest{Config: v1.Descriptor{Digest: hash}, Layers: layers})
		index, _ := blob(format.DataOCIRootIndex, v1.IndexManifest{Manifests: []v1.Descriptor{{Digest: hash}}})
		return []format.DescriptorInput{layer, config, m, index}
	}
	squash := v1.Descriptor{MediaType: squashLayer, Digest: layerHash}
	many, _ := blob(format.DataOCIRootIndex, v1.IndexManifest{Manifests: []v1.Descriptor{{Digest: layerHash}, {Digest: layerHash}}})
	for name, c := range map[string]struct {
		objects []format.DescriptorInput
		want    string
	}{
		"none":            {nil, "no root file system"},
		"ext3":            {[]format.DescriptorInput{root(t, format.FsExt3)}, "is ext3; hpcc reads SquashFS"},
		"encrypted":       {[]format.DescriptorInput{root(t, format.FsEncryptedSquashfs)}, "encrypted"},
		"gocryptfs":       {[]format.DescriptorInput{root(t, format.FsGocryptfsSquashfs)}, "encrypted"},
		"OCI":             {oci(squash), ""},
		"OCI, two layers": {oci(squash, squash), "OCI-SIF file with 2 layers"},
		"OCI, tar":        {oci(v1.Descriptor{MediaType: "application/x-tar", Digest: layerHash}), `of type "application/x-tar"`},
		"OCI, no layer":   {oci(), "with 0 layers"},
		"OCI, two images": {[]format.DescriptorInput{many}, "holds 2 OCI images"},
	} {
		img, err := read(library(t, c.objects...))
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		_, size, err := img.Root()
		if (c.want == "" && (err != nil || size != int64(len(`"layer"`)))) || (c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want))) {
			t.Errorf("%s: %d bytes, error %v; want %q", name, size, err, c.want)
		}
		if got, _ := img.Config(Files{}, nil); name == "OCI" && (got.Architecture != "ppc64le" || got.Config.Env[0] != "A=oci") {
			t.Errorf("%s: the configuration is %+v", name, got)
		}
	}
}

// TestReadHostile checks that the reader refuses damaged files with a reason.
func TestReadHostile(t *testing.T) {
	const table = 4096 // position of the descriptors
	at := func(object, field int) int { return table + (object-1)*descriptorSize + field }
	const offset, size = 17, 25 // fields of a descriptor
	put := func(at int, v int64) func([]byte) []byte {
		return func(b []byte) []byte { binary.LittleEndian.PutUint64(b[at:], uint64(v)); return b }
	}
	both := func(f ...func([]byte) []byte) func([]byte) []byte {
		return func(b []byte) []byte {
			for _, f := range f {
				b = f(b)
			}
			return b
		}
	}
	for name, c := range map[string]struct {
		change func([]byte) []byte
		want   string
	}{
		"intact":                   {both(), ""},
		"empty":                    {func([]byte) []byte { return nil }, "not a SIF file"},
		"header only":              {func(b []byte) []byte { return b[:headerSize] }, "list of objects"},
		"truncated list":           {func(b []byte) []byte { return b[:table+100] }, "truncated or damaged"},
		"truncated object":         {func(b []byte) []byte { return b[:len(b)-1] }, "object 2 (FS): 12 bytes at 32768 are beyond the end"},
		"other version":            {func(b []byte) []byte { b[42] = '9'; return b }, "incompatible SIF version"},
		"thousands of descriptors": {put(totalAt, 100_000), "space for 100000 objects"},
		"negative number":          {put(totalAt, -1), "space for -1 objects"},
		"number that lies":         {put(totalAt, 47), "invalid SIF header"},
		"list before the header":   {put(tableAt, 10), "list of objects"},
		"list at a negative place": {put(tableAt, -1<<63), "list of objects"},
		"list outside":             {put(tableAt, 1<<62), "list of objects"},
		"object outside":           {put(at(2, offset), 1<<40), "beyond the end"},
		"object before the file":   {put(at(2, offset), -5), "beyond the end"},
		"negative size":            {put(at(2, size), -5), "beyond the end"},
		"size that lies":           {put(at(2, size), 1<<62), "beyond the end"},
		"sum that overflows":       {both(put(at(2, offset), 1<<62), put(at(2, size), 3<<61)), "beyond the end"},
		"overlap":                  {put(at(2, offset), 32176), "objects 1 and 2 overlap"},
	} {
		b := c.change(library(t, input(t, format.DataGenericJSON, `{"Env":["A=1"]}`, format.OptObjectName("oci-config.json")), root(t, format.FsSquash)))
		_, err := read(b)
		if (c.want == "" && err != nil) || (c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want))) {
			t.Errorf("%s: error is %v; want %q", name, err, c.want)
		}
	}
	if _, err := read(library(t, input(t, format.DataGenericJSON, `{"Env":`, format.OptObjectName("oci-config.json")))); err == nil || !strings.Contains(err.Error(), "oci-config.json") {
		t.Errorf("error is %v; want one about the configuration", err)
	}
	if _, err := read(library(t, input(t, format.DataGenericJSON, strings.Repeat(" ", maxJSON+1), format.OptObjectName("oci-config.json")))); err == nil || !strings.Contains(err.Error(), "the maximum is") {
		t.Errorf("error is %v; want one about the size", err)
	}
}

func TestIs(t *testing.T) {
	dir := t.TempDir()
	file, pipe, link := filepath.Join(dir, "x"), filepath.Join(dir, "pipe"), filepath.Join(dir, "link.sif")
	testenv.Check(t, os.WriteFile(file, library(t), 0o600))
	testenv.Check(t, syscall.Mkfifo(pipe, 0o600))
	testenv.Check(t, os.Symlink("x", link))
	for name, want := range map[string]bool{file: true, link: true, pipe: false, dir: false, file + "none": false} {
		if Is(name) != want {
			t.Errorf("Is(%s) = %v", name, !want)
		}
	}
}

// TestWrite reads what Write wrote with the library.
func TestWrite(t *testing.T) {
	config := &v1.ConfigFile{Architecture: "ppc64le", Config: v1.Config{Env: []string{"A=1"}, Labels: map[string]string{"k": "v"}}}
	write := func(config *v1.ConfigFile) (string, error) {
		f, err := os.Create(filepath.Join(t.TempDir(), "x.sif"))
		testenv.Check(t, err)
		defer f.Close()
		return f.Name(), Write(f, Content{Digest: "sha256:abc", Config: config, Root: func(w io.WriteSeeker) error {
			if _, err := w.Seek(4, io.SeekStart); err != nil {
				return err
			}
			if _, err := io.WriteString(w, " content"); err != nil {
				return err
			}
			if _, err := w.Seek(0, io.SeekStart); err != nil {
				return err
			}
			_, err := io.WriteString(w, "hsqs")
			return err
		}})
	}
	first, err := write(config)
	testenv.Check(t, err)
	second, err := write(config)
	testenv.Check(t, err)
	a, err := os.ReadFile(first)
	testenv.Check(t, err)
	b, err := os.ReadFile(second)
	testenv.Check(t, err)
	if !bytes.Equal(a, b) {
		t.Error("the same content gives different bytes")
	}
	f, err := format.LoadContainerFromPath(first, format.OptLoadWithFlag(os.O_RDONLY))
	testenv.Check(t, err)
	defer f.UnloadContainer() //nolint:errcheck // read only
	if f.PrimaryArch() != "ppc64le" || f.LaunchScript() != "#!/usr/bin/env run-singularity\n" {
		t.Errorf("architecture %q, launch script %q", f.PrimaryArch(), f.LaunchScript())
	}
	var got []string
	f.WithDescriptors(func(d format.Descriptor) bool {
		data, err := d.GetData()
		testenv.Check(t, err)
		got = append(got, fmt.Sprintf("%s %q %s", d.DataType(), d.Name(), data))
		return false
	})
	want := []string{
		"Def.FILE \"\" # Written by hpcc save from the image sha256:abc. There is no definition file.\nBootstrap: scratch\n",
		`JSON.Generic "oci-config.json" {"Env":["A=1"],"Labels":{"k":"v"}}`,
		`JSON.Labels "labels.json" {"k":"v"}`,
		`FS "" hsqs content`,
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("objects are %q; want %q", got, want)
	}
	if d, err := f.GetDescriptor(format.WithPartitionType(format.PartPrimSys)); err != nil || d.Offset()%4096 != 0 {
		t.Errorf("root file system at %d, %v", d.Offset(), err)
	}
	if _, err := write(&v1.ConfigFile{Architecture: "vax"}); err == nil || !strings.Contains(err.Error(), `architecture "vax"`) {
		t.Errorf("error is %v; want one about the architecture", err)
	}
}

func FuzzRead(f *testing.F) {
	f.Add(library(f, input(f, format.DataGenericJSON, `{"Env":["A=1"]}`, format.OptObjectName("oci-config.json")), root(f, format.FsSquash)))
	f.Add(library(f, input(f, format.DataOCIRootIndex, `{"manifests":[{}]}`), input(f, format.DataOCIBlob, "{}")))
	f.Fuzz(func(t *testing.T, b []byte) {
		img, err := read(b)
		if err != nil {
			return
		}
		for _, o := range img.Objects {
			if o.Offset < 0 || o.Size < 0 || o.Offset+o.Size > int64(len(b)) {
				t.Errorf("object %+v is outside of %d bytes", o, len(b))
			}
		}
		_, _ = img.Config(Files{}, nil)
	})
}
