package source

import (
	"fmt"
	"strconv"
	"time"
)

// Date returns the modification time that SOURCE_DATE_EPOCH sets, given its value in seconds
// since 1970. An empty value means the first day that zip archives support: a constant, so that
// the same input gives the same image.
func Date(epoch string) (time.Time, error) {
	if epoch == "" {
		return time.Date(1980, 1, 1, 0, 0, 0, 0, time.UTC), nil
	}
	sec, err := strconv.ParseInt(epoch, 10, 64)
	if err != nil {
		return time.Time{}, fmt.Errorf("invalid SOURCE_DATE_EPOCH: %s is not a number of seconds; give the seconds since 1970, as \"date +%%s\" prints them", epoch)
	}
	return time.Unix(sec, 0).UTC(), nil
}
