// SPDX-License-Identifier: Apache-2.0
#include "agent/policy/document.h"

#include <utility>

namespace mapgate::policy {

void DocumentBuilder::add(DocumentNode node) {
  if (++count_ > kMaxDocumentNodes) {
    throw DocumentRefused({node.location, "the document has more than " +
                                              std::to_string(kMaxDocumentNodes) + " values"});
  }
  if (open_.empty()) {
    root_ = std::move(node);
  } else {
    open_.back().items.push_back(std::move(node));
  }
}

void DocumentBuilder::begin(DocumentNode::Kind kind, Location location) {
  if (open_.size() >= kMaxDocumentDepth) {
    throw DocumentRefused(
        {location, "more than " + std::to_string(kMaxDocumentDepth) + " levels deep"});
  }
  DocumentNode node;
  node.kind = kind;
  node.location = location;
  open_.push_back(std::move(node));
}

void DocumentBuilder::end() {
  DocumentNode node = std::move(open_.back());
  open_.pop_back();
  add(std::move(node));
}

void DocumentBuilder::key(std::string text, Location location) {
  open_.back().keys.push_back({std::move(text), location});
}

bool DocumentBuilder::wants_key() const {
  return !open_.empty() && open_.back().kind == DocumentNode::Kind::kMapping &&
         open_.back().keys.size() == open_.back().items.size();
}

}  // namespace mapgate::policy
