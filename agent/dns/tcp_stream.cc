// SPDX-License-Identifier: Apache-2.0
#include "agent/dns/tcp_stream.h"

#include <sys/socket.h>

#include <array>
#include <cerrno>
#include <utility>

namespace mapgate::dns {
namespace {

constexpr std::size_t kLengthSize = 2;
constexpr std::size_t kReadSize = 16384;

}  // namespace

TcpStream::TcpStream(boost::asio::io_context& io, int fd, std::size_t max_message,
                     Callbacks callbacks)
    : max_message_(max_message),
      callbacks_(std::move(callbacks)),
      descriptor_(std::make_unique<Descriptor>(
          io, fd, [this] { on_readable(); }, [this] { on_writable(); })) {}

void TcpStream::set_reading(bool reading) {
  if (closed_ || ended_ || std::exchange(reading_, reading) == reading) return;
  if (reading && !taking_) {
    const auto self = shared_from_this();
    take_messages();
    if (!closed_ && !ended_ && reading_) descriptor_->want_read();
  }
}

void TcpStream::send(MessageView message) {
  if (closed_ || broken_) return;
  const std::size_t size = message.size();
  const bool idle = unsent() == 0;
  output_.push_back(static_cast<std::uint8_t>(size >> 8));
  output_.push_back(static_cast<std::uint8_t>(size));
  output_.insert(output_.end(), message.begin(), message.end());
  if (idle) flush();
}

void TcpStream::close() {
  closed_ = true;
  descriptor_.reset();
}

void TcpStream::on_readable() {
  const auto self = shared_from_this();
  if (!reading_) return;
  receive();
  take_messages();
  if (!closed_ && !ended_ && reading_) descriptor_->want_read();
}

void TcpStream::receive() {
  std::array<std::uint8_t, kReadSize> buffer;
  const ssize_t size = ::recv(descriptor_->fd(), buffer.data(), buffer.size(), MSG_DONTWAIT);
  if (size > 0) {
    input_.insert(input_.end(), buffer.begin(), buffer.begin() + size);
  } else if (size == 0) {
    end(End::kFinished);
  } else if (errno != EAGAIN && errno != EINTR) {
    end(End::kBroken);
  }
}

void TcpStream::take_messages() {
  taking_ = true;
  std::size_t position = 0;
  while (reading_ && !closed_ && !ended_ && input_.size() - position >= kLengthSize) {
    const std::size_t size = static_cast<std::size_t>(input_[position] << 8 | input_[position + 1]);
    if (size > max_message_) {
      end(End::kOversized);
      break;
    }
    if (input_.size() - position - kLengthSize < size) break;
    callbacks_.on_message(MessageView(input_).subspan(position + kLengthSize, size));
    position += kLengthSize + size;
  }
  input_.erase(input_.begin(), input_.begin() + static_cast<std::ptrdiff_t>(position));
  taking_ = false;
}

void TcpStream::on_writable() {
  const auto self = shared_from_this();
  if (broken_) {
    end(End::kBroken);
    return;
  }
  flush();
  if (!closed_ && !broken_ && unsent() == 0) callbacks_.on_drained();
}

void TcpStream::flush() {
  while (unsent() > 0) {
    const ssize_t size =
        ::send(descriptor_->fd(), output_.data() + sent_, unsent(), MSG_DONTWAIT | MSG_NOSIGNAL);
    if (size < 0) {
      if (errno == EINTR) continue;
      // The owner hears of a failure from the loop, never from within its own send().
      broken_ = errno != EAGAIN;
      descriptor_->want_write();
      return;
    }
    sent_ += static_cast<std::size_t>(size);
  }
  output_.clear();
  sent_ = 0;
}

void TcpStream::end(End reason) {
  if (closed_ || std::exchange(ended_, true)) return;
  callbacks_.on_end(reason);
}

}  // namespace mapgate::dns
