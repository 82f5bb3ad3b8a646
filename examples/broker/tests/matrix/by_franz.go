// franz-go, feature by feature: by_franz ADDRESS FEATURE. See features.py.
package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"os"
	"reflect"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"github.com/twmb/franz-go/pkg/sasl/plain"
)

const (
	timeout        = 30 * time.Second
	refusalTimeout = 8 * time.Second
	start          = 1_700_000_000_000
	count          = 50
)

var (
	address  string
	ctx, end = context.WithTimeout(context.Background(), timeout)
)

// What the client logs in words.
type logs struct{}

func (logs) Level() kgo.LogLevel { return kgo.LogLevelWarn }
func (logs) Log(_ kgo.LogLevel, message string, pairs ...any) {
	fmt.Fprintln(os.Stderr, append([]any{message}, pairs...)...)
}

func check(err error) {
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
}

func expect(found, expected any) {
	if !reflect.DeepEqual(found, expected) {
		check(fmt.Errorf("%v instead of %v", found, expected))
	}
}

func until(isSo func() bool) {
	for !isSo() {
		check(ctx.Err())
		time.Sleep(20 * time.Millisecond)
	}
}

func client(options ...kgo.Opt) *kgo.Client {
	common := []kgo.Opt{
		kgo.SeedBrokers(address),
		kgo.AllowAutoTopicCreation(),
		kgo.RequiredAcks(kgo.AllISRAcks()),
		kgo.RecordPartitioner(kgo.ManualPartitioner()),
		kgo.ProducerLinger(20 * time.Millisecond),
		kgo.MetadataMinAge(100 * time.Millisecond),
		kgo.WithLogger(logs{}),
	}
	one, err := kgo.NewClient(append(common, options...)...)
	check(err)
	return one
}

func admin() *kadm.Client { return kadm.NewClient(client()) }

func create(topic string, partitions int32) {
	_, err := admin().CreateTopic(ctx, partitions, 1, nil, topic)
	check(err)
}

func values() (found []string) {
	for number := range count {
		found = append(found, strings.Repeat(strconv.Itoa(number)+" ", 20))
	}
	return found
}

func produce(topic string, options ...kgo.Opt) {
	one := client(options...)
	defer one.Close()
	var records []*kgo.Record
	for number, value := range values() {
		header := kgo.RecordHeader{Key: "number", Value: []byte(strconv.Itoa(number))}
		records = append(records, &kgo.Record{
			Topic: topic, Value: []byte(value), Headers: []kgo.RecordHeader{header},
			Timestamp: time.UnixMilli(start + 1000*int64(number)),
		})
	}
	for number, result := range one.ProduceSync(ctx, records...) {
		check(result.Err)
		expect(result.Record.Offset, int64(number))
	}
}

func take(one *kgo.Client, wanted int) (found []*kgo.Record) {
	for len(found) < wanted {
		fetches := one.PollRecords(ctx, wanted-len(found))
		for _, each := range fetches.Errors() {
			check(each.Err)
		}
		found = append(found, fetches.Records()...)
	}
	return found
}

func read(topic string, wanted int, options ...kgo.Opt) []*kgo.Record {
	from := map[string]map[int32]kgo.Offset{topic: {0: kgo.NewOffset().AtStart()}}
	one := client(append(options, kgo.ConsumePartitions(from))...)
	defer one.Close()
	return take(one, wanted)
}

func texts(records []*kgo.Record) (found []string) {
	for _, record := range records {
		found = append(found, string(record.Value))
	}
	return found
}

func roundTrip(topic string, options ...kgo.Opt) func() {
	return func() {
		produce(topic, options...)
		expect(texts(read(topic, count)), values())
	}
}

func headers() {
	produce("headers")
	for number, record := range read("headers", 2) {
		expect(string(record.Headers[0].Value), strconv.Itoa(number))
	}
}

func inGroup(group string, options ...kgo.Opt) []kgo.Opt {
	common := []kgo.Opt{
		kgo.ConsumerGroup(group), kgo.ConsumeTopics(group), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.Balancers(kgo.RangeBalancer()), kgo.HeartbeatInterval(300 * time.Millisecond), kgo.DisableAutoCommit(),
	}
	return append(common, options...)
}

func commit() {
	produce("commit")
	for _, half := range [][]string{values()[:25], values()[25:]} {
		one := client(inGroup("commit")...)
		found := take(one, 25)
		expect(texts(found), half)
		check(one.CommitRecords(ctx, found...))
		one.Close()
	}
}

// A member of a group: what it was assigned, and nothing where that was revoked.
type member struct {
	*kgo.Client
	mutex    sync.Mutex
	assigned [][]int32
}

func join(group string, options ...kgo.Opt) *member {
	one := &member{}
	add := func(partitions []int32) {
		one.mutex.Lock()
		defer one.mutex.Unlock()
		one.assigned = append(one.assigned, partitions)
	}
	one.Client = client(inGroup(group, append(
		options,
		kgo.OnPartitionsAssigned(func(_ context.Context, _ *kgo.Client, gained map[string][]int32) { add(gained[group]) }),
		kgo.OnPartitionsRevoked(func(context.Context, *kgo.Client, map[string][]int32) { add(nil) }),
	)...)...)
	return one
}

// How often that changed, and what it is now.
func (m *member) share() (int, []int32) {
	m.mutex.Lock()
	defer m.mutex.Unlock()
	if len(m.assigned) == 0 {
		return 0, nil
	}
	return len(m.assigned), m.assigned[len(m.assigned)-1]
}

func has(number int, members ...*member) {
	until(func() bool {
		for _, each := range members {
			if _, share := each.share(); len(share) != number {
				return false
			}
		}
		return true
	})
}

func group() {
	create("group", 4)
	first := join("group")
	has(4, first)
	second := join("group")
	has(2, first, second)
	second.Close()
	has(4, first)
	first.Close()
}

func static() {
	create("static", 2)
	one, two := join("static", kgo.InstanceID("one")), join("static", kgo.InstanceID("two"))
	has(1, one, two)
	before, _ := one.share()
	_, mine := two.share()
	two.Close()
	again := join("static", kgo.InstanceID("two"))
	has(1, again)
	after, _ := one.share()
	_, now := again.share()
	expect(now, mine)
	expect(after, before)
	one.Close()
	again.Close()
}

func times() {
	produce("times")
	var found []int64
	for _, at := range []int64{0, 1500, 49_000} {
		listed, err := admin().ListOffsetsAfterMilli(ctx, start+at, "times")
		check(err)
		offset, _ := listed.Lookup("times", 0)
		check(offset.Err)
		found = append(found, offset.Offset)
	}
	expect(found, []int64{0, 2, 49})
}

// The second of three transactions is aborted. franz-go commits offsets in a transaction only for a
// group that it consumes in.
func transactions() {
	produce("transactions-in")
	session, err := kgo.NewGroupTransactSession(append(
		inGroup("transactions-in", kgo.TransactionalID("franz-go"), kgo.RequireStableFetchOffsets()),
		kgo.SeedBrokers(address), kgo.AllowAutoTopicCreation(), kgo.WithLogger(logs{}),
		kgo.RecordPartitioner(kgo.ManualPartitioner()),
	)...)
	check(err)
	for number := range 3 {
		for len(session.PollRecords(ctx, 10).Records()) == 0 {
			check(ctx.Err())
		}
		check(session.Begin())
		record := &kgo.Record{Topic: "transactions", Value: []byte(strconv.Itoa(number))}
		check(session.ProduceSync(ctx, record).FirstErr())
		committed, err := session.End(ctx, kgo.TransactionEndTry(number != 1))
		check(err)
		expect(committed, number != 1)
	}
	session.Close()
	records := read("transactions", 2, kgo.FetchIsolationLevel(kgo.ReadCommitted()))
	expect(texts(records), []string{"0", "2"})
	offsets, err := admin().FetchOffsets(ctx, "transactions-in")
	check(err)
	found, isThere := offsets.Lookup("transactions-in", 0)
	expect(isThere && found.At > 0, true)
}

func topics() {
	create("topics", 2)
	one := admin()
	_, err := one.CreatePartitions(ctx, 1, "topics")
	check(err)
	until(func() bool {
		found, err := one.ListTopics(ctx, "topics")
		return err == nil && len(found["topics"].Partitions) == 3
	})
	_, err = one.DeleteTopic(ctx, "topics")
	check(err)
	until(func() bool {
		found, err := one.ListTopics(ctx)
		return err == nil && !found.Has("topics")
	})
}

func configs() {
	create("configs", 1)
	one := admin()
	altered, err := one.AlterTopicConfigs(ctx, []kadm.AlterConfig{{Name: "retention.ms", Value: kadm.StringPtr("5000")}}, "configs")
	check(err)
	check(altered[0].Err)
	until(func() bool {
		described, err := one.DescribeTopicConfigs(ctx, "configs")
		check(err)
		for _, config := range described[0].Configs {
			if config.Key == "retention.ms" {
				return config.MaybeValue() == "5000"
			}
		}
		return false
	})
}

func deleteRecords() {
	produce("delete-records")
	deleted, err := admin().DeleteRecords(ctx, kadm.Offsets{"delete-records": {0: {Topic: "delete-records", At: 20}}})
	check(err)
	check(deleted.Error())
	expect(deleted["delete-records"][0].LowWatermark, int64(20))
}

func deleteOffsets() {
	create("delete-offsets", 1)
	one := admin()
	check(one.CommitAllOffsets(ctx, "delete-offsets", kadm.Offsets{"delete-offsets": {0: {Topic: "delete-offsets", At: 7}}}))
	offset := func() int64 {
		found, err := one.FetchOffsets(ctx, "delete-offsets")
		check(err)
		if at, isThere := found.Lookup("delete-offsets", 0); isThere {
			return at.At
		}
		return -1
	}
	expect(offset(), int64(7))
	deleted, err := one.DeleteOffsets(ctx, "delete-offsets", kadm.TopicsSet{"delete-offsets": {0: {}}})
	check(err)
	check(deleted.Error())
	expect(offset(), int64(-1))
}

// Sees whether a client joins its group by the classic protocol.
type joins struct{ isClassic atomic.Bool }

func (j *joins) OnBrokerWrite(_ kgo.BrokerMetadata, key int16, _ int, _, _ time.Duration, _ error) {
	if key == kmsg.JoinGroup.Int16() {
		j.isClassic.Store(true)
	}
}

// The group protocol of KIP-848.
func newGroup() {
	produce("new-group")
	seen := &joins{}
	one := client(inGroup("new-group", kgo.ServerSideBalancer(), kgo.WithHooks(seen))...)
	defer one.Close()
	take(one, count)
	if seen.isClassic.Load() {
		check(errors.New("it joins by the classic protocol instead"))
	}
}

func secured(options ...kgo.Opt) func() {
	return func() {
		limited, end := context.WithTimeout(ctx, refusalTimeout)
		defer end()
		err := client(append(options, kgo.RetryTimeout(refusalTimeout))...).Ping(limited)
		check(err)
	}
}

func main() {
	defer end()
	address = os.Args[1]
	features := map[string]func(){
		"acks":           roundTrip("acks"),
		"gzip":           roundTrip("gzip", kgo.ProducerBatchCompression(kgo.GzipCompression())),
		"snappy":         roundTrip("snappy", kgo.ProducerBatchCompression(kgo.SnappyCompression())),
		"lz4":            roundTrip("lz4", kgo.ProducerBatchCompression(kgo.Lz4Compression())),
		"zstd":           roundTrip("zstd", kgo.ProducerBatchCompression(kgo.ZstdCompression())),
		"headers":        headers,
		"commit":         commit,
		"group":          group,
		"static":         static,
		"times":          times,
		"idempotence":    roundTrip("idempotence"),
		"transactions":   transactions,
		"topics":         topics,
		"configs":        configs,
		"delete-records": deleteRecords,
		"delete-offsets": deleteOffsets,
		"new-group":      newGroup,
		"tls":            secured(kgo.DialTLSConfig(&tls.Config{})),
		"sasl":           secured(kgo.SASL(plain.Auth{User: "me", Pass: "secret"}.AsMechanism())),
	}
	feature, isOffered := features[os.Args[2]]
	if !isOffered {
		check(errors.New("NotOffered: " + os.Args[2]))
	}
	feature()
}
