package source

import (
	"fmt"
	"strconv"
	"time"
)

// earliest is the first day that zip archives support in every time zone: local time is up to
// 12 hours behind UTC, and archives begin in 1980.
var earliest = time.Date(1980, 1, 2, 0, 0, 0, 0, time.UTC)

// Date returns the date of a reproducible image, given the value of SOURCE_DATE_EPOCH: seconds
// since 1970. An empty value means a constant. files is the time of the image's files, which is
// never before 1980-01-02.
func Date(epoch string) (created, files time.Time, err error) {
	if epoch == "" {
		return earliest, earliest, nil
	}
	sec, err := strconv.ParseInt(epoch, 10, 64)
	if err != nil {
		return created, files, fmt.Errorf("invalid SOURCE_DATE_EPOCH: %s is not a number of seconds; give the seconds since 1970, as \"date +%%s\" prints them", epoch)
	}
	if created, files = time.Unix(sec, 0).UTC(), earliest; created.After(files) {
		files = created
	}
	return created, files, nil
}
