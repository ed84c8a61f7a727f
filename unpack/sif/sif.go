// Package sif reads and writes SIF files, the images of Apptainer. A SIF file
// is one file that contains objects:
//
//	header · descriptors of the objects · definition file · configuration · root file system · signatures
//
// The library github.com/apptainer/sif reads and writes the header and the descriptors. Input
// is untrusted: the library trusts the numbers of the header, so this package checks them
// first, and the position of each object afterwards. Nothing of an image is executed. The
// scripts in /.singularity.d that set variables are interpreted (script.go).
package sif

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	format "github.com/apptainer/sif/v2/pkg/sif"
	v1 "github.com/google/go-containerregistry/pkg/v1"
)

// Limits for untrusted input. Apptainer reserves 48 descriptors.
const (
	maxObjects = 1024
	maxJSON    = 4 << 20 // bytes of a JSON object
)

// Positions of the header's fields (struct header of the library), and sizes in bytes.
const (
	magicAt        = 32
	totalAt        = 88 // number of descriptors
	tableAt        = 96 // position of the descriptors
	tableSizeAt    = 104
	headerSize     = 128
	descriptorSize = 585
)

// ociConfig is the name of the object with an OCI image configuration, of which it holds only
// the member "config".
const ociConfig = "oci-config.json"

// An Image describes a SIF file.
type Image struct {
	Arch    string   `json:"architecture"` // of the root file system, as GOARCH, or "unknown"
	Objects []Object `json:"objects"`

	offset, size int64      // root file system
	unusable     error      // why hpcc cannot read the root file system, or nil
	config       *v1.Config // of the object oci-config.json, or nil
	full         *v1.ConfigFile
}

// An Object is one object of a SIF file.
type Object struct {
	ID     uint32 `json:"id"`
	Type   string `json:"type"`
	Name   string `json:"name,omitempty"`
	Group  uint32 `json:"group,omitempty"`
	Offset int64  `json:"offset"`
	Size   int64  `json:"size"`

	FileSystem string `json:"fileSystem,omitempty"` // of a partition
	Partition  string `json:"partition,omitempty"`  // what it is for; *System is the root file system
	Signs      string `json:"signs,omitempty"`      // the object or group that a signature is for
	Key        string `json:"key,omitempty"`        // fingerprint of the key of a signature, if recorded

	kind format.DataType
}

// Is reports whether a regular file is a SIF file. It does not open pipes, which would block.
func Is(file string) bool {
	if fi, err := os.Stat(file); err != nil || !fi.Mode().IsRegular() {
		return false
	}
	f, err := os.Open(file)
	if err != nil {
		return false
	}
	defer f.Close()
	return IsAt(f)
}

// IsAt reports whether a SIF file begins at the start of r.
func IsAt(r io.ReaderAt) bool {
	b := make([]byte, len("SIF_MAGIC\x00"))
	_, err := r.ReadAt(b, magicAt)
	return err == nil && string(b) == "SIF_MAGIC\x00"
}

// Open reads the description of a SIF file.
func Open(file string) (*Image, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	fi, err := f.Stat()
	if err != nil {
		return nil, err
	}
	return Read(f, fi.Size())
}

// Read reads the description of the SIF file in r, which has size bytes.
func Read(r io.ReaderAt, size int64) (*Image, error) {
	if err := checkHeader(r, size); err != nil {
		return nil, err
	}
	f, err := format.LoadContainer(readOnly{io.NewSectionReader(r, 0, size)})
	if err != nil {
		return nil, fmt.Errorf("reading the SIF header: %w", err)
	}
	var all []format.Descriptor
	f.WithDescriptors(func(d format.Descriptor) bool {
		all = append(all, d)
		return false
	})
	img := &Image{Arch: f.PrimaryArch(), Objects: []Object{}}
	for _, d := range all {
		o := object(d)
		if o.Offset < 0 || o.Size < 0 || o.Offset > size || o.Size > size-o.Offset {
			return nil, fmt.Errorf("object %d (%s): %d bytes at %d are beyond the end of the file, which has %d; it is truncated or damaged", o.ID, o.Type, o.Size, o.Offset, size)
		}
		img.Objects = append(img.Objects, o)
	}
	if err := img.checkOverlap(); err != nil {
		return nil, err
	}
	return img, img.find(all)
}

// readOnly provides the interface that the library requires of files.
type readOnly struct{ *io.SectionReader }

func (readOnly) Write([]byte) (int, error) { return 0, errors.ErrUnsupported }
func (readOnly) Truncate(int64) error      { return errors.ErrUnsupported }

// checkHeader checks the numbers of the header that decide how much the library reads.
func checkHeader(r io.ReaderAt, size int64) error {
	b := make([]byte, headerSize)
	if _, err := r.ReadAt(b, 0); err != nil || !IsAt(bytes.NewReader(b)) {
		return errors.New("not a SIF file")
	}
	number := func(at int) int64 { return int64(binary.LittleEndian.Uint64(b[at:])) }
	total, at, bytes := number(totalAt), number(tableAt), number(tableSizeAt)
	switch {
	case total < 0 || total > maxObjects:
		return fmt.Errorf("it has space for %d objects; hpcc supports %d", total, maxObjects)
	case bytes != total*descriptorSize:
		return fmt.Errorf("invalid SIF header: %d bytes for %d objects", bytes, total)
	case at < headerSize || at > size || bytes > size-at:
		return fmt.Errorf("the list of objects, %d bytes at %d, is beyond the end of the file, which has %d; it is truncated or damaged", bytes, at, size)
	}
	return nil
}

// object describes the object of a descriptor.
func object(d format.Descriptor) Object {
	o := Object{ID: d.ID(), Type: d.DataType().String(), Name: d.Name(), Group: d.GroupID(),
		Offset: d.Offset(), Size: d.Size(), kind: d.DataType()}
	if fs, part, _, err := d.PartitionMetadata(); err == nil {
		o.FileSystem, o.Partition = fs.String(), part.String()
	}
	if o.kind != format.DataSignature {
		return o
	}
	linked, isGroup := d.LinkedID()
	o.Signs = fmt.Sprintf("object %d", linked)
	if isGroup {
		o.Signs = fmt.Sprintf("object group %d", linked)
	}
	if _, key, err := d.SignatureMetadata(); err == nil {
		o.Key = strings.ToUpper(hex.EncodeToString(key))
	}
	return o
}

// checkOverlap refuses objects that share bytes.
func (img *Image) checkOverlap() error {
	sorted := slices.Clone(img.Objects)
	slices.SortFunc(sorted, func(a, b Object) int { return int(min(max(a.Offset-b.Offset, -1), 1)) })
	for i := 1; i < len(sorted); i++ {
		if a, b := sorted[i-1], sorted[i]; b.Size > 0 && a.Offset+a.Size > b.Offset {
			return fmt.Errorf("the objects %d and %d overlap; the file is damaged", a.ID, b.ID)
		}
	}
	return nil
}

// find finds the root file system and the configuration.
func (img *Image) find(all []format.Descriptor) error {
	img.unusable = errors.New("it has no root file system")
	roots := 0
	for _, d := range all {
		if fs, part, arch, err := d.PartitionMetadata(); err == nil && part == format.PartPrimSys {
			roots++
			img.offset, img.size, img.Arch, img.unusable = d.Offset(), d.Size(), arch, usable(fs)
		}
		if d.DataType() != format.DataGenericJSON || d.Name() != ociConfig {
			continue
		}
		img.config = &v1.Config{}
		if err := readJSON(d, img.config); err != nil {
			return fmt.Errorf("reading the object %s: %w", ociConfig, err)
		}
	}
	if roots > 1 {
		return fmt.Errorf("it has %d root file systems; the file is damaged", roots)
	}
	if roots == 0 {
		return img.findOCI(all)
	}
	return nil
}

// usable returns the reason why hpcc cannot read a root file system, or nil.
func usable(fs format.FSType) error {
	switch fs {
	case format.FsSquash:
		return nil
	case format.FsEncryptedSquashfs, format.FsGocryptfsSquashfs:
		return errors.New("its root file system is encrypted; hpcc has no key for it: run it with apptainer, or build it again without --encrypt")
	}
	return fmt.Errorf("its root file system is %s; hpcc reads SquashFS: convert it with \"apptainer build NEW.sif OLD.sif\"", strings.ToLower(fs.String()))
}

// readJSON decodes an object of at most maxJSON bytes.
func readJSON(d format.Descriptor, into any) error {
	if d.Size() > maxJSON {
		return fmt.Errorf("it has %d bytes; the maximum is %d", d.Size(), maxJSON)
	}
	b, err := d.GetData()
	if err != nil {
		return err
	}
	return json.Unmarshal(b, into)
}

// Root returns the position and the size of the root file system, a SquashFS one.
func (img *Image) Root() (offset, size int64, err error) { return img.offset, img.size, img.unusable }

// Ignored names the partitions that Apptainer would add to the root file system and hpcc does
// not use.
func (img *Image) Ignored() (notes []string) {
	for _, o := range img.Objects {
		if o.Partition == format.PartOverlay.String() {
			notes = append(notes, fmt.Sprintf("it has an overlay (object %d, %d bytes), which hpcc does not use: changes that were saved in it are missing", o.ID, o.Size))
		}
	}
	return notes
}

// Signatures describes the signatures, which hpcc does not verify.
func (img *Image) Signatures() (notes []string) {
	for _, o := range img.Objects {
		if o.kind != format.DataSignature {
			continue
		}
		by := "a key without a recorded fingerprint"
		if o.Key != "" {
			by = "key " + o.Key
		}
		notes = append(notes, fmt.Sprintf("%s is signed by %s; hpcc does not verify signatures: use \"apptainer verify\"", o.Signs, by))
	}
	return notes
}
