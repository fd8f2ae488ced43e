from __future__ import annotations

import uuid

from magneton_dist.cluster.presence import Presence


def test_audits_see_each_other_and_not_themselves() -> None:
    one, other = f"one-{uuid.uuid4().hex}", f"other-{uuid.uuid4().hex}"
    first, second = Presence(one, "node-0"), Presence(one, "node-1")
    third = Presence(other, "node-0")
    assert other in first.others()
    assert one not in first.others()
    assert one in third.others()
    third.close()
    assert other not in first.others()
    first.close()
    second.close()
