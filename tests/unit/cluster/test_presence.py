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


def test_a_long_name_is_no_error() -> None:
    first, second = Presence(f"1-{'x' * 200}", "node-0"), Presence(f"2-{'x' * 200}", "node-0")
    assert [name[:2] for name in first.others() if "xxx" in name] == ["2-"]
    first.close()
    second.close()
