// sarama, feature by feature: by_sarama ADDRESS FEATURE. See features.py.
package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"reflect"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/IBM/sarama"
)

const (
	timeout = 30 * time.Second
	start   = 1_700_000_000_000
	count   = 50
)

var (
	address  []string
	ctx, end = context.WithTimeout(context.Background(), timeout)
)

func check(err error) {
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
}

func must[T any](value T, err error) T {
	check(err)
	return value
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

type option = func(*sarama.Config)

func config(options ...option) *sarama.Config {
	config := sarama.NewConfig()
	config.Version = sarama.MaxVersion
	config.Metadata.RefreshFrequency = 500 * time.Millisecond
	config.Producer.RequiredAcks = sarama.WaitForAll
	config.Producer.Partitioner = sarama.NewManualPartitioner
	config.Producer.Return.Successes = true
	config.Consumer.Offsets.Initial = sarama.OffsetOldest
	config.Consumer.Offsets.AutoCommit.Enable = false
	config.Consumer.Group.Heartbeat.Interval = 300 * time.Millisecond
	for _, set := range options {
		set(config)
	}
	return config
}

func admin() sarama.ClusterAdmin { return must(sarama.NewClusterAdmin(address, config())) }

func create(topic string, partitions int32) {
	check(admin().CreateTopic(topic, &sarama.TopicDetail{NumPartitions: partitions, ReplicationFactor: 1}, false))
}

func values() (found []string) {
	for number := range count {
		found = append(found, strings.Repeat(strconv.Itoa(number)+" ", 20))
	}
	return found
}

func produce(topic string, options ...option) {
	producer := must(sarama.NewSyncProducer(address, config(options...)))
	defer producer.Close()
	var messages []*sarama.ProducerMessage
	for number, value := range values() {
		header := sarama.RecordHeader{Key: []byte("number"), Value: []byte(strconv.Itoa(number))}
		messages = append(messages, &sarama.ProducerMessage{
			Topic: topic, Value: sarama.StringEncoder(value), Headers: []sarama.RecordHeader{header},
			Timestamp: time.UnixMilli(start + 1000*int64(number)),
		})
	}
	check(producer.SendMessages(messages))
	for number, message := range messages {
		expect(message.Offset, int64(number))
	}
}

func read(topic string, wanted int, options ...option) (found []*sarama.ConsumerMessage) {
	consumer := must(sarama.NewConsumer(address, config(options...)))
	defer consumer.Close()
	partition := must(consumer.ConsumePartition(topic, 0, sarama.OffsetOldest))
	defer partition.Close()
	for len(found) < wanted {
		select {
		case message := <-partition.Messages():
			found = append(found, message)
		case <-ctx.Done():
			check(ctx.Err())
		}
	}
	return found
}

func texts(messages []*sarama.ConsumerMessage) (found []string) {
	for _, message := range messages {
		found = append(found, string(message.Value))
	}
	return found
}

func roundTrip(topic string, options ...option) func() {
	return func() {
		produce(topic, options...)
		expect(texts(read(topic, count)), values())
	}
}

func compressed(topic string, codec sarama.CompressionCodec) func() {
	return roundTrip(topic, func(config *sarama.Config) { config.Producer.Compression = codec })
}

func headers() {
	produce("headers")
	for number, message := range read("headers", 2) {
		expect(string(message.Headers[0].Value), strconv.Itoa(number))
	}
}

// A member of a group: its assigned partitions, without revoked ones; the first `wanted` messages,
// which it commits.
type member struct {
	group    sarama.ConsumerGroup
	leave    context.CancelFunc
	hasLeft  chan struct{}
	wanted   int
	mutex    sync.Mutex
	assigned [][]int32
	messages []*sarama.ConsumerMessage
}

func join(topic string, wanted int, options ...option) *member {
	one := &member{group: must(sarama.NewConsumerGroup(address, topic, config(options...))), wanted: wanted}
	var joined context.Context
	joined, one.leave = context.WithCancel(ctx)
	one.hasLeft = make(chan struct{})
	go func() {
		defer close(one.hasLeft)
		for joined.Err() == nil {
			if err := one.group.Consume(joined, []string{topic}, one); joined.Err() == nil {
				check(err)
			}
		}
	}()
	return one
}

func (m *member) Setup(session sarama.ConsumerGroupSession) error {
	for _, partitions := range session.Claims() {
		m.add(partitions)
	}
	return nil
}

func (m *member) Cleanup(sarama.ConsumerGroupSession) error {
	m.add(nil)
	return nil
}

func (m *member) add(partitions []int32) {
	m.mutex.Lock()
	defer m.mutex.Unlock()
	m.assigned = append(m.assigned, partitions)
}

func (m *member) ConsumeClaim(session sarama.ConsumerGroupSession, claim sarama.ConsumerGroupClaim) error {
	for message := range claim.Messages() {
		m.mutex.Lock()
		if len(m.messages) < m.wanted {
			m.messages = append(m.messages, message)
			session.MarkMessage(message, "")
			if len(m.messages) == m.wanted {
				session.Commit()
			}
		}
		m.mutex.Unlock()
	}
	return nil
}

func (m *member) close() {
	m.leave()
	<-m.hasLeft
	check(m.group.Close())
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

func commit() {
	produce("commit")
	for _, half := range [][]string{values()[:25], values()[25:]} {
		one := join("commit", 25)
		until(func() bool {
			one.mutex.Lock()
			defer one.mutex.Unlock()
			return len(one.messages) == 25
		})
		one.close()
		expect(texts(one.messages), half)
	}
}

func group() {
	create("group", 4)
	first := join("group", 0)
	has(4, first)
	second := join("group", 0)
	has(2, first, second)
	second.close()
	has(4, first)
	first.close()
}

func named(name string) option {
	return func(config *sarama.Config) { config.Consumer.Group.InstanceId = name }
}

func static() {
	create("static", 2)
	one, two := join("static", 0, named("one")), join("static", 0, named("two"))
	has(1, one, two)
	before, _ := one.share()
	_, mine := two.share()
	two.close()
	again := join("static", 0, named("two"))
	has(1, again)
	after, _ := one.share()
	_, now := again.share()
	expect(now, mine)
	expect(after, before)
	one.close()
	again.close()
}

func times() {
	produce("times")
	client := must(sarama.NewClient(address, config()))
	var found []int64
	for _, at := range []int64{0, 1500, 49_000} {
		found = append(found, must(client.GetOffset("times", 0, start+at)))
	}
	expect(found, []int64{0, 2, 49})
}

func idempotent(config *sarama.Config) {
	config.Producer.Idempotent = true
	config.Net.MaxOpenRequests = 1
}

// The second of three transactions is aborted.
func transactions() {
	producer := must(sarama.NewSyncProducer(address, config(idempotent, func(config *sarama.Config) {
		config.Producer.Transaction.ID = "sarama"
	})))
	for number := range 3 {
		check(producer.BeginTxn())
		message := &sarama.ProducerMessage{Topic: "transactions", Value: sarama.StringEncoder(strconv.Itoa(number))}
		_, _, err := producer.SendMessage(message)
		check(err)
		offset := &sarama.PartitionOffsetMetadata{Offset: 10 + int64(number)}
		check(producer.AddOffsetsToTxn(map[string][]*sarama.PartitionOffsetMetadata{"transactions": {offset}}, "transactions"))
		if number == 1 {
			check(producer.AbortTxn())
		} else {
			check(producer.CommitTxn())
		}
	}
	check(producer.Close())
	isolated := func(config *sarama.Config) { config.Consumer.IsolationLevel = sarama.ReadCommitted }
	expect(texts(read("transactions", 2, isolated)), []string{"0", "2"})
	expect(offset(admin(), "transactions"), int64(12))
}

// What the group, which has the name of its topic, has committed.
func offset(admin sarama.ClusterAdmin, topic string) int64 {
	found := must(admin.ListConsumerGroupOffsets(topic, map[string][]int32{topic: {0}}))
	return found.GetBlock(topic, 0).Offset
}

func topics() {
	create("topics", 2)
	one := admin()
	check(one.CreatePartitions("topics", 3, nil, false))
	until(func() bool { return must(one.ListTopics())["topics"].NumPartitions == 3 })
	check(one.DeleteTopic("topics"))
	until(func() bool {
		_, isThere := must(one.ListTopics())["topics"]
		return !isThere
	})
}

func configs() {
	create("configs", 1)
	one, value := admin(), "5000"
	entry := sarama.IncrementalAlterConfigsEntry{Operation: sarama.IncrementalAlterConfigsOperationSet, Value: &value}
	entries := map[string]sarama.IncrementalAlterConfigsEntry{"retention.ms": entry}
	check(one.IncrementalAlterConfig(sarama.TopicResource, "configs", entries, false))
	asked := sarama.ConfigResource{Type: sarama.TopicResource, Name: "configs", ConfigNames: []string{"retention.ms"}}
	until(func() bool { return must(one.DescribeConfig(asked))[0].Value == value })
}

func deleteRecords() {
	produce("delete-records")
	check(admin().DeleteRecords("delete-records", map[int32]int64{0: 20}))
	client := must(sarama.NewClient(address, config()))
	expect(must(client.GetOffset("delete-records", 0, sarama.OffsetOldest)), int64(20))
}

func deleteOffsets() {
	create("delete-offsets", 1)
	one := admin()
	offsets := map[string]map[int32]sarama.OffsetAndMetadata{"delete-offsets": {0: {Offset: 7, LeaderEpoch: -1}}}
	must(one.AlterConsumerGroupOffsets("delete-offsets", offsets, nil))
	expect(offset(one, "delete-offsets"), int64(7))
	check(one.DeleteConsumerGroupOffset("delete-offsets", "delete-offsets", 0))
	expect(offset(one, "delete-offsets"), int64(-1))
}

// Of what the client logs, which is much, only what went wrong.
type failures struct{}

func (failures) Write(line []byte) (int, error) {
	if bytes.Contains(line, []byte("rror")) && !bytes.Contains(line, []byte("ApiVersions")) {
		return os.Stderr.Write(line)
	}
	return len(line), nil
}

func secured(set option) func() {
	return func() {
		sarama.Logger = log.New(failures{}, "", 0)
		must(sarama.NewClient(address, config(set, func(config *sarama.Config) { config.Metadata.Retry.Max = 1 })))
	}
}

func main() {
	defer end()
	address = []string{os.Args[1]}
	features := map[string]func(){
		"acks":           roundTrip("acks"),
		"gzip":           compressed("gzip", sarama.CompressionGZIP),
		"snappy":         compressed("snappy", sarama.CompressionSnappy),
		"lz4":            compressed("lz4", sarama.CompressionLZ4),
		"zstd":           compressed("zstd", sarama.CompressionZSTD),
		"headers":        headers,
		"commit":         commit,
		"group":          group,
		"static":         static,
		"times":          times,
		"idempotence":    roundTrip("idempotence", idempotent),
		"transactions":   transactions,
		"topics":         topics,
		"configs":        configs,
		"delete-records": deleteRecords,
		"delete-offsets": deleteOffsets,
		"tls":            secured(func(config *sarama.Config) { config.Net.TLS.Enable = true }),
		"sasl": secured(func(config *sarama.Config) {
			config.Net.SASL.Enable, config.Net.SASL.User, config.Net.SASL.Password = true, "me", "secret"
		}),
	}
	feature, isOffered := features[os.Args[2]]
	if !isOffered {
		check(errors.New("NotOffered: " + os.Args[2]))
	}
	feature()
}
